"""Experiments as a command on the small images, and what they wrote."""

from simplicia import cli
from simplicia.experiments import store


def call(place, *words, epochs=2):
    cut = ["--epochs", str(epochs), "--batch-size", "30", "--probe-epochs", "2", "--quiet"]
    where = ["--data", place / "images", "--runs", place / "runs", "--results", place / "results"]
    return cli.main([str(word) for word in ("reproduce", *where, *cut, *words)])


def rows(place, name, folder="other"):
    return store.read(place / "results" / folder / f"{name}.json")
