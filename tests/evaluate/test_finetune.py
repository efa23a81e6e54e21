"""Fine-tuning: the command end to end, the trainer's constants, choosing without the test set."""

import dataclasses
import itertools
import json

import pytest
import torch

import simplicia
from simplicia import cli
from simplicia.data.loaders import HostLoader
from simplicia.errors import UserError
from simplicia.evaluate.finetune import (
    FinetuneSettings,
    Trial,
    Tuned,
    finetune,
    predict,
    trainable_layer,
    tune,
)
from simplicia.evaluate.transfer import default_layer, load_splits

QUICK = FinetuneSettings(lrs=(0.01, 0.1), steps=6, batch_size=16)


@pytest.fixture(scope="module")
def run(small_run):
    return simplicia.load(small_run, "cpu")


@pytest.fixture(scope="module")
def sets(run, colours):
    return load_splits(run, str(colours))


def test_command_prints_the_numbers_it_writes(small_run, colours, capsys, tmp_path):
    out = tmp_path / "f.json"
    words = f"finetune {small_run} --data {colours} --steps 4 --lrs 0.01 0.05 --batch-size 16 --json {out}"
    assert cli.main(words.split()) == 0
    result, said = json.loads(out.read_text()), capsys.readouterr().out
    assert f"{result['accuracy']:.1f} ±" in said and result["protocol"] == "transfer, fine-tuned"
    assert result["layer"] == "sem" and result["temperature"] == 1 and result["steps"] == 4
    assert [row["lr"] for row in result["trials"]] == [0.01, 0.05]
    best = max(result["trials"], key=lambda row: row["validation_accuracy"])
    assert result["lr"] == best["lr"] and result["train_images"] == 48


def test_defaults_match_the_paper():
    settings = FinetuneSettings()
    assert (settings.steps, settings.batch_size, settings.temperature) == (20_000, 256, 1.0)
    lrs = settings.lrs
    assert len(lrs) == 7 and lrs[0] == 1e-4 and lrs[-1] == 0.1
    ratios = [b / a for a, b in itertools.pairwise(lrs)]
    assert ratios == pytest.approx([10**0.5] * 6, rel=1e-4)


def test_all_parameters_are_trained_and_the_run_does_not_change(run, sets):
    before = {k: v.clone() for k, v in run.method.state_dict().items()}
    model = tune(run, sets.train, Trial(0.1, 3, 1.0), QUICK)
    for key, value in run.method.state_dict().items():
        assert value.equal(before[key])
    fresh = Tuned(run, 3, 1.0)
    for (name, p), q in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert not p.equal(q), name


def test_batch_norm_has_the_papers_momentum(run, sets):
    """The paper keeps max(1 - 10 / s, 0.9) of the statistics, for s steps an epoch; torch counts the rest."""
    images, labels = sets.train.images.repeat(10, 1, 1, 1), sets.train.labels.repeat(10)
    train = dataclasses.replace(sets.train, images=images, labels=labels)
    for batch_size in (2, 16):
        model = tune(run, train, Trial(0.01, 1, 1.0), dataclasses.replace(QUICK, batch_size=batch_size))
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        kept = max(1 - 10 / (len(images) // batch_size), 0.9)
        assert norms and all(m.momentum == pytest.approx(1 - kept) for m in norms)


def test_diverged_trial_is_never_chosen(run, sets):
    wild = dataclasses.replace(QUICK, lrs=(1e30, 0.01))
    result = finetune(run, sets, "encoder", wild)
    assert result["lr"] == 0.01 and result["trials"][0]["validation_accuracy"] == 0


def test_tuning_keeps_the_callers_random_state(run, sets):
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    tune(run, sets.train, Trial(0.01, 1, 1.0), QUICK)
    assert torch.rand(3).equal(expected)


def test_training_depends_only_on_its_seed(run, sets):
    trained = [
        tune(run, sets.train, Trial(0.1, 3, None), dataclasses.replace(QUICK, seed=s)) for s in (0, 0, 1)
    ]
    scores = [predict(run, model, sets.test.images) for model in trained]
    assert scores[0].equal(scores[1]) and not scores[0].equal(scores[2])


def test_host_and_device_loaders_tune_the_same_model(run, sets, monkeypatch):
    arguments = run, sets.train, Trial(0.05, 5, 1.0), QUICK
    here = tune(*arguments).state_dict()
    monkeypatch.setattr(simplicia.evaluate.finetune, "choose_loader", lambda *_: HostLoader)
    streamed = tune(*arguments).state_dict()
    assert all(torch.equal(here[key], streamed[key]) for key in here)


def test_training_learns_colours(run, sets):
    model = tune(run, sets.train, Trial(0.1, 40, None), QUICK)
    right = predict(run, model, sets.test.images).argmax(1) == sets.test.labels
    assert right.float().mean() > 0.8


def test_choosing_never_sees_the_test_set(run, sets):
    honest = finetune(run, sets, "encoder", QUICK)
    poisoned = dataclasses.replace(sets.test, images=255 - sets.test.images, labels=sets.test.labels.roll(10))
    other = finetune(run, sets._replace(test=poisoned), "encoder", QUICK)
    for key in ("lr", "validation_accuracy", "trials"):
        assert honest[key] == other[key]


def test_a_target_network_can_be_tuned(small_run, sets):
    run = simplicia.load(small_run, "cpu")
    with torch.no_grad():
        for parameter in run.method.target.encoder.parameters():
            parameter.zero_()
    model = Tuned(run, 3, None, "target")
    assert all(not p.any() and p.requires_grad for p in model.encoder.parameters())
    settings = dataclasses.replace(QUICK, lrs=(0.1,), steps=30)
    online, blind = (finetune(run, sets, "encoder", settings, network) for network in ("online", "target"))
    assert blind["network"] == "target" and blind["temperature"] is None
    assert blind["accuracy"] == pytest.approx(100 / 3) and online["accuracy"] > 50


def test_an_embed_run_is_tuned_through_a_softmax(embed_run, sets):
    run = simplicia.load(embed_run, "cpu")
    assert trainable_layer(run, None) == "encoder" and default_layer(run, None) == "embedder"
    model = Tuned(run, 3, 0.5).eval()
    seen = []
    model.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    with torch.no_grad():
        model(run.view(sets.test.images))
    torch.testing.assert_close(seen[0], run.encode(sets.test.images, "sem", 0.5))


def test_diverged_model_raises(run, sets):
    with pytest.raises(UserError, match="diverged; lower lrs"):
        finetune(run, sets, "encoder", dataclasses.replace(QUICK, lrs=(1e30,)))


def test_user_errors_are_one_line_with_exit_status_2(small_run, plain_run, colours, draw, tmp_path, fails):
    def message(*words, run=small_run):
        return fails("finetune", run, "--data", colours, *words)

    assert "its bottleneck is 'none'" in message("--layer", "sem", run=plain_run)
    assert "layer 'codes' cannot be fine-tuned" in message("--layer", "codes")
    assert "lrs is (-1.0,)" in message("--lrs", -1)
    assert "steps is 0" in message("--steps", 0)
    assert "batch_size is 1; it must be at least 2" in message("--batch-size", 1)
    assert "crop_scale" in message("--crop-scale", 0.5, 0.1)
    assert "temperature is -1" in message("--temperature", -1)
    assert "temperature is 0.0; it must be above 0" in message("--temperature", 0)
