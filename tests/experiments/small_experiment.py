"""Experiments on the small images, as a command and from Python."""

from simplicia import cli
from simplicia.experiments import store
from simplicia.experiments.reproduce import Options


def call(images, root, *words, epochs=2):
    """``simplicia reproduce``, with runs and results below a folder; returns its exit status."""
    brief = ["--epochs", str(epochs), "--batch-size", "30", "--probe-epochs", "2", "--quiet"]
    where = ["--data", images, "--runs", root / "runs", "--results", root / "results"]
    return cli.main([str(word) for word in ("reproduce", *where, *brief, *words)])


def options_for(images, root, **more):
    return Options(
        data=str(images),
        epochs=2,
        batch_size=30,
        probe_epochs=2,
        quiet=True,
        runs=root / "runs",
        results=root / "results",
        **more,
    )


def rows(root, name, folder="other"):
    return store.read(root / "results" / folder / f"{name}.json")
