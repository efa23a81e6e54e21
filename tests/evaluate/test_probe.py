"""The linear probe: a grid equals separate probes, and the test set neither trains nor chooses."""

import copy
import dataclasses
import gc
import importlib
import statistics
import weakref

import pytest
import torch
import torch.nn.functional as F

from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import ProbeSettings, knn, probe, sgd
from simplicia.evaluate import probe_inputs as inputs
from simplicia.evaluate.features import CACHED_SETS, encoder_features
from simplicia.evaluate.probe import PRESETS, fit, preset
from simplicia.evaluate.probe_inputs import Inputs
from simplicia.evaluate.sgd import Probes, Rates, correct, train
from simplicia.run import Run

QUICK = ProbeSettings(lrs=(0.1, 1.0), l1=(0.0, 1e-3), temperatures=(0.0, 1.0), epochs=5, batch_size=64)


def alone(x, labels, rates, settings, seed=0):
    """One probe by torch's own SGD and autograd, on the batches that the grid sees."""
    linear = torch.nn.Linear(x.shape[1], 20)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    optimizer = torch.optim.SGD(
        [{"params": [linear.weight], "weight_decay": rates.l2}, {"params": [linear.bias]}],
        rates.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(settings.epochs):
        for group in optimizer.param_groups:
            group["lr"] = rates.lr * (1 if epoch < 3 else 0.1 if epoch < 4 else 0.01)
        for part in torch.randperm(len(x), generator=generator).split(settings.batch_size):
            loss = F.cross_entropy(linear(x[part]), labels[part]) + rates.l1 * linear.weight.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return linear


@pytest.mark.parametrize("nesterov", [False, True])
def test_grid_equals_probes_trained_one_by_one(run, sets, nesterov):
    images, labels = sets[0].images, sets[0].labels
    settings = dataclasses.replace(QUICK, nesterov=nesterov)
    temperatures = (0.5, 1.0)
    grid = [Rates(0.1), Rates(1.0, l1=1e-3), Rates(0.5, l2=1e-2), Rates(0.2, 1e-4, 1e-3)]
    source = Inputs(run, images, "sem", temperatures)
    weight, bias = train(
        lambda epoch, part: source.plain(part),
        source.width,
        torch.arange(len(images)),
        labels,
        20,
        [grid] * 2,
        epochs=5,
        batch_size=64,
        nesterov=nesterov,
    )
    for t, temperature in enumerate(temperatures):
        x = run.encode(images, "sem", temperature)
        for i, rates in enumerate(grid):
            single = alone(x, labels, rates, settings)
            columns = slice(20 * i, 20 * i + 20)
            # where L1 holds a weight at 0, rounding decides its sign: allow for a few steps
            close = 1e-5 + 20 * 0.01 * rates.lr * rates.l1
            torch.testing.assert_close(weight[t, :, columns].T, single.weight, rtol=1e-3, atol=close)
            torch.testing.assert_close(bias[t, 0, columns], single.bias, rtol=1e-3, atol=1e-5)


def test_presets_match_the_paper():
    cifar, imagenet = preset("cifar"), preset("imagenet")
    for settings in (cifar, imagenet):
        settings.validate()
        assert len(settings.lrs) * len(settings.l1) * len(settings.l2) * len(settings.temperatures) == 36
        assert (settings.epochs, settings.batch_size, settings.momentum) == (100, 256, 0.9)
        assert settings.augment
    assert not cifar.nesterov and cifar.validation == 0.1 and 1e-4 in cifar.temperatures
    assert imagenet.nesterov and imagenet.validation == 10 and 0.05 in imagenet.lrs
    cifar.epochs = 1
    assert PRESETS["cifar"].epochs == 100  # a preset is handed out as a copy


def test_the_imagenet_preset_trains_as_sgd_with_nesterov(run, sets):
    """Through ``fit``, so that the preset's own rule reaches the weights."""
    images = sets[0]
    settings = dataclasses.replace(
        preset("imagenet"), epochs=5, batch_size=64, validation=5, augment=False, temperatures=(0.1,)
    )
    result = fit(run, images, "sem", settings)
    single = alone(run.encode(images.images, "sem", 0.1), images.labels, result.rates[0], settings)
    weight, bias = result.probes[0]
    torch.testing.assert_close(weight[0].T, single.weight, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(bias[0, 0], single.bias, rtol=1e-3, atol=1e-5)
    assert result.validation_images == 5 * 20


def test_neither_choice_nor_weights_see_the_test_set(run, sets, monkeypatch):
    train_set, test = sets
    trained = []
    module = importlib.import_module("simplicia.evaluate.probe")
    real = module.fit
    monkeypatch.setattr(module, "fit", lambda *a, **k: trained.append(real(*a, **k)) or trained[-1])
    honest = probe(run, train_set, test, "sem", QUICK)
    poisoned = dataclasses.replace(test, images=255 - test.images, labels=test.labels.flip(0))
    other = probe(run, train_set, poisoned, "sem", QUICK)
    for key in ("temperature", "selected", "validation_accuracy", "grid"):
        assert honest[key] == other[key]
    for ours, theirs in zip(trained[0].probes[0], trained[1].probes[0], strict=True):
        assert torch.equal(ours, theirs)
    assert honest["accuracy"] != other["accuracy"]


def test_held_out_images_are_not_trained_on_before_choosing(run, sets, monkeypatch):
    """Wrong labels on the held-out images change their accuracy, not the probes that are compared."""
    images = sets[0]
    module = importlib.import_module("simplicia.evaluate.probe")
    held = module._hold_out(images, 0.1)
    assert held.sum() == 40 and (images.labels[held].bincount() > 0).all()
    labels = images.labels.clone()
    labels[held] = (labels[held] + 1) % 20
    weights = []
    real = module.train
    monkeypatch.setattr(module, "train", lambda *a, **k: weights.append(real(*a, **k)) or weights[-1])
    monkeypatch.setattr(module, "_hold_out", lambda *a: held)
    fit(run, images, "encoder", QUICK)
    fit(run, dataclasses.replace(images, labels=labels), "encoder", QUICK)
    chosen_from, retrained, chosen_from_poisoned, retrained_poisoned = weights
    assert torch.equal(chosen_from.weight, chosen_from_poisoned.weight)
    assert not torch.equal(retrained.weight, retrained_poisoned.weight[..., : retrained.weight.shape[-1]])


def test_the_headline_is_the_row_chosen_on_validation(run, sets):
    result = probe(run, *sets, "sem", QUICK)
    rows = result["per_temperature"]
    assert [row["temperature"] for row in rows] == [0.0, 1.0]
    best = max(rows, key=lambda row: row["validation_accuracy"])
    assert all(result[key] == best[key] for key in best)
    assert result["validation_images"] == 40 and result["train_images"] == 400 and result["online"] is False
    assert result["seeds"] == [0] and result["precision"] == "float32" and result["commit"]


def test_the_temperature_matrix_is_each_probe_at_each_temperature(run, sets):
    train_set, test = sets
    settings = dataclasses.replace(QUICK, temperatures=(0.0, 0.1, 1.0))
    matrix = probe(run, train_set, test, "sem", settings)["temperature_matrix"]
    weight, bias = fit(run, train_set, "sem", settings).probes[0]
    for i in range(3):
        for j, tau in enumerate(settings.temperatures):
            scores = run.encode(test.images, "sem", tau) @ weight[i] + bias[i]
            right = (scores.argmax(1) == test.labels).double().mean().item()
            assert matrix["accuracy"][i][j] == pytest.approx(
                100 * right, abs=0.51
            )  # a tie may fall elsewhere
    assert len({tuple(row) for row in matrix["accuracy"]}) > 1


def test_codes_are_dense_one_hot_vectors(run, sets):
    images, labels = sets[0].images, sets[0].labels
    sources = [Inputs(run, images, layer, (0.0,)) for layer in ("codes", "sem")]
    assert sources[0].cache.dtype == torch.uint8 and sources[0].cache.shape == (400, 16)
    assert sources[0].width == sources[1].width
    grid = [[Rates(0.1), Rates(1.0, 1e-3)]]
    result = [
        train(lambda e, p, s=s: s.plain(p), s.width, torch.arange(400), labels, 20, grid, epochs=3)
        for s in sources
    ]
    torch.testing.assert_close(result[0].weight, result[1].weight, rtol=1e-4, atol=1e-6)
    some = torch.arange(50)
    scores = [p.scores(s.plain(some)) for p, s in zip(result, sources, strict=True)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)


@pytest.fixture
def in_16_bits(monkeypatch):
    """As on a GPU: simplices and codes in 16 bits, codes as dense vectors."""
    monkeypatch.setattr(inputs, "precision", lambda layer, device: torch.half)


@pytest.mark.parametrize("layer", ["sem", "codes"])
def test_products_of_16_bit_numbers_train_the_same_probes(run, sets, in_16_bits, layer):
    images, labels = sets[0].images, sets[0].labels
    source = Inputs(run, images, layer, (0.0,) if layer == "codes" else (0.1, 1.0))
    everything = torch.arange(400)
    dense = source.plain(everything)
    assert dense.dtype == torch.half and dense.shape[1:] == (400, 208)
    if layer == "codes":
        assert source.cache.dtype == torch.uint8
        torch.testing.assert_close(dense[0].float(), run.encode(images, "sem", 0.0))
    grid = [[Rates(0.1), Rates(1.0, 1e-5), Rates(0.5, 0.0, 1e-3)]] * len(dense)

    def trained(inputs):
        # 400 = 6 x 64 + 16: the last batch of an epoch is smaller
        return train(inputs, source.width, everything, labels, 20, grid, epochs=5, batch_size=64)

    result = trained(lambda e, part: source.plain(part))
    wide = trained(lambda e, part: source.plain(part).float())
    assert result.weight.dtype == torch.float32
    for a, b in zip(result, wide, strict=True):
        assert (a - b).abs().max() < 2e-3 * b.abs().max()
    scores = [p.scores(x) for p, x in ((result, dense), (wide, dense.float()))]
    assert (scores[0].argmax(-1) == scores[1].argmax(-1)).float().mean() > 0.99


@pytest.mark.parametrize("features", [80, 13 * 1024, 5003])
def test_a_product_in_parts_equals_the_full_product(features):
    x, weight = torch.randn(2, 5, features).half(), torch.randn(2, features, 7).half()
    torch.testing.assert_close(sgd._product(x, weight), x.float() @ weight.float(), rtol=1e-4, atol=1e-4)


def test_probes_leave_nothing_behind(run, sets):
    """A grid can be gigabytes, and a GPU that is full does not start Python's collector."""
    source = Inputs(run, sets[0].images, "encoder", (None,))
    arguments = source.width, torch.arange(400), sets[0].labels, 20, [[Rates(0.1)]]
    gc.collect()
    gc.disable()
    try:
        result = train(lambda e, part: source.plain(part), *arguments, epochs=1)
        left = weakref.ref(result.weight)
        del result
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.parametrize("layer", ["encoder", "sem", "codes"])
def test_on_a_gpu_a_recorded_step_trains_the_same_probes(run, sets, monkeypatch, layer):
    here = Run(run.path, run.recipe, copy.deepcopy(run.method).cuda(), run.state)
    settings = dataclasses.replace(QUICK, temperatures=(0.1, 1.0), augment=True)
    graphs = []
    real = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda g: graphs.append(g) or real(g))
    recorded = fit(here, sets[0], layer, settings).probes[0]
    assert len(set(map(id, graphs))) == 2 and len(graphs) > 20  # for choosing, and for the chosen
    monkeypatch.setattr(sgd, "RECORDED_BYTES", 0)
    launched = fit(here, sets[0], layer, settings).probes[0]
    assert len(set(map(id, graphs))) == 2
    for a, b in zip(recorded, launched, strict=True):
        assert (a - b).abs().max() < 1e-4 * b.abs().max()
    monkeypatch.setattr(inputs, "precision", lambda layer, device: torch.float32)
    wide = fit(here, sets[0], layer, settings).probes[0]
    for a, b in zip(recorded, wide, strict=True):
        assert (a - b).abs().max() < 0.02 * b.abs().max()


def test_codes_are_temperature_zero(run, sets):
    codes = probe(run, *sets, "codes", QUICK)
    sharp = probe(run, *sets, "sem", dataclasses.replace(QUICK, temperatures=(0.0,)))
    assert codes["accuracy"] == sharp["accuracy"] and codes["layer"] == "codes"
    assert codes["temperature"] == 0.0


def test_top1_and_top5_match_sorting():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 6, generator=generator)
    weight, bias = torch.randn(3, 6, 2 * 9, generator=generator), torch.randn(3, 1, 18, generator=generator)
    labels = torch.arange(40) % 9
    hits, among = correct(Probes(weight, bias), lambda part: x[:, part], torch.arange(40), labels, 9)
    order = (x @ weight + bias).unflatten(-1, (2, 9)).argsort(-1, descending=True)
    rank = (order == labels[:, None, None]).int().argmax(-1)
    assert torch.equal(hits, rank == 0) and torch.equal(among, (rank < 5).sum(1))
    assert (among > hits.sum(1)).all()


def test_seeds_are_separate_trainings_and_their_mean(run, sets):
    one = dataclasses.replace(QUICK, lrs=(1.0,), l1=(0.0,), temperatures=(1.0,), epochs=3)
    both = probe(run, *sets, "sem", dataclasses.replace(one, seeds=2))
    each = [probe(run, *sets, "sem", dataclasses.replace(one, seed=seed)) for seed in (0, 1)]
    accuracies = [result["accuracy"] for result in each]
    assert both["seed_accuracies"] == pytest.approx(accuracies) and both["seeds"] == [0, 1]
    assert both["accuracy"] == pytest.approx(statistics.mean(accuracies))
    assert both["standard_deviation"] == pytest.approx(statistics.stdev(accuracies))
    assert both["top5_accuracy"] == pytest.approx(statistics.mean(result["top5_accuracy"] for result in each))
    assert "standard_deviation" not in each[0]


def test_views_depend_on_seed_and_epoch_cached_or_not(run, sets, monkeypatch):
    images = sets[0].images
    kept = Inputs(run, images, "encoder", (None,), augment=True)
    monkeypatch.setitem(inputs.VIEWS_CACHE, "cpu", 0)
    recomputed = Inputs(run, images, "encoder", (None,), augment=True)
    some = torch.arange(0, 400, 7)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    views = [
        [source.training(s, e, some) for s, e in ((0, 0), (0, 1), (1, 0), (0, 0))]
        for source in (kept, recomputed)
    ]
    assert torch.equal(torch.rand(3), expected)  # the global random state is unchanged
    assert all(torch.equal(a, b) for a, b in zip(*views, strict=True))
    assert len(kept.views.cache) == 3 and len(recomputed.views.cache) == 1
    first, second, other_seed, again = views[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second) and not torch.equal(first, other_seed)
    assert torch.equal(kept.plain(some)[0], run.encode(images[some], "encoder"))


def test_probes_use_standard_crops_whatever_the_recipe(run, sets):
    other = dataclasses.replace(
        run.recipe, views=dataclasses.replace(run.recipe.views, crop_scale=(0.9, 1.0))
    )
    some = torch.arange(20)
    one, two = (
        Inputs(result, sets[0].images[:20], "encoder", (None,), augment=True).training(0, 0, some)
        for result in (run, Run(run.path, other, run.method, run.state))
    )
    assert torch.equal(one, two)


def test_augmented_views_and_the_target_network(run, sets):
    run = Run(run.path, run.recipe, copy.deepcopy(run.method), run.state)
    with torch.no_grad():
        for parameter in run.method.target.encoder.parameters():
            parameter.zero_()
    quick = dataclasses.replace(QUICK, epochs=2, lrs=(0.1,), l1=(0.0,))
    plain, augmented, target = (
        probe(run, *sets, "encoder", quick),
        probe(run, *sets, "encoder", dataclasses.replace(quick, augment=True)),
        probe(run, *sets, "encoder", quick, network="target"),
    )
    assert augmented["views"] == "crop and flip" and plain["views"] == "none"
    assert target["network"] == "target" and plain["temperature_matrix"] is None
    assert augmented["accuracy"] != plain["accuracy"] > target["accuracy"]  # its weights are zero


def test_probe_separates_brightness(run):
    """Any encoder can separate classes that differ in brightness."""
    labels = torch.arange(120) % 3
    images = (labels * 100)[:, None, None, None].expand(-1, 3, 32, 32).to(torch.uint8).contiguous()
    bright = ImageSet("bright", images, labels, classes=("dark", "grey", "light"))
    settings = ProbeSettings(lrs=(0.1,), l1=(0.0,), epochs=30, batch_size=32)
    result = probe(run, bright, bright, "encoder", settings)
    assert result["accuracy"] == 100 and "top5_accuracy" not in result  # there are only three classes
    assert knn(run, bright, bright, "encoder")["accuracy"] == 100


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lrs": ()}, "lrs"),
        ({"l1": (-1.0,)}, "l1"),
        ({"l2": (float("inf"),)}, "l2"),
        ({"temperatures": (float("nan"),)}, "temperatures"),
        ({"epochs": 0}, "epochs is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"momentum": 1.0}, "momentum is 1"),
        ({"validation": 1.5}, "validation"),
        ({"validation": 0.0}, "validation"),
        ({"validation": 50.0}, "needs 51"),
    ],
)
def test_invalid_settings_raise_one_line_errors(run, sets, change, words):
    with pytest.raises(UserError, match=words):
        probe(run, *sets, "sem", dataclasses.replace(QUICK, **change))


def test_one_image_of_a_class_is_trained_on_and_not_chosen_on(run, sets):
    train_set, test = sets
    lonely = dataclasses.replace(
        train_set, images=train_set.images[:21], labels=torch.tensor([*range(20), 0])
    )
    assert probe(run, lonely, test, "encoder", QUICK)["validation_images"] == 1
    with pytest.raises(UserError, match="has 1, and needs 2"):
        probe(run, lonely, test, "encoder", dataclasses.replace(QUICK, validation=1))
    every = dataclasses.replace(train_set, images=train_set.images[:20], labels=torch.arange(20))
    with pytest.raises(UserError, match="has one image of each class"):
        probe(run, every, test, "encoder", QUICK)


def test_each_class_keeps_an_image_for_training(run):
    pairs = ImageSet(
        "pairs", torch.zeros(6, 3, 32, 32, dtype=torch.uint8), torch.arange(6) % 3, classes=("a", "b", "c")
    )
    assert fit(run, pairs, "encoder", dataclasses.replace(QUICK, validation=0.9)).validation_images == 3


def test_classes_that_do_not_match_raise(run, sets):
    train_set, test = sets
    renamed = dataclasses.replace(test, classes=("oddity", *test.classes[1:]))
    with pytest.raises(UserError, match=r"do not match: .*oddity"):
        probe(run, train_set, renamed, "encoder", QUICK)
    fewer = train_set.labels != 3
    partial = dataclasses.replace(train_set, images=train_set.images[fewer], labels=train_set.labels[fewer])
    for measure in (probe, knn):
        with pytest.raises(UserError, match=f"no training image shows: {train_set.classes[3]}"):
            measure(run, partial, test, "encoder")
    with pytest.raises(UserError, match="no labels"):
        probe(run, dataclasses.replace(train_set, labels=None), test)


def test_a_probe_that_diverges_is_never_chosen(run, sets):
    """Weight decay above 2 / rate flips and grows the weights at every step; the others go on.

    Scores that are no numbers are guesses of the first class, which most images here have.
    """
    numbers = torch.arange(400)
    mostly = dataclasses.replace(
        sets[0], images=torch.zeros_like(sets[0].images), labels=torch.where(numbers % 4 > 0, 0, numbers % 20)
    )
    wild = dataclasses.replace(QUICK, lrs=(5.0, 0.1), l1=(0.0,), l2=(1.0, 0.0), epochs=60, batch_size=50)
    trained = fit(run, mostly, "encoder", wild)
    assert trained.rates[0].lr * trained.rates[0].l2 < 2 and trained.validation[0] > 50
    with pytest.raises(UserError, match="not finite"):
        fit(run, sets[0], "encoder", dataclasses.replace(wild, lrs=(5.0,), l2=(1.0,)))


def test_features_are_computed_again_when_a_weight_has_changed(run, sets):
    other = Run(run.path, run.recipe, copy.deepcopy(run.method), run.state)
    first = encoder_features(other, sets[1].images)
    assert encoder_features(other, sets[1].images) is first
    with torch.no_grad():
        next(other.method.online.encoder.parameters()).mul_(2)
    second = encoder_features(other, sets[1].images)
    assert not torch.equal(first, second)
    sets[1].images[0] += 1
    assert not torch.equal(encoder_features(other, sets[1].images)[0], second[0])
    sets[1].images[0] -= 1


def test_a_run_caches_the_features_of_few_sets(run, sets):
    other = Run(run.path, run.recipe, run.method, run.state)
    parts = sets[1].images.split(20)
    result = [encoder_features(other, part) for part in parts]
    assert len(other.features) == CACHED_SETS < len(parts)
    assert encoder_features(other, parts[-1]) is result[-1]
    assert torch.equal(encoder_features(other, parts[0]), result[0])


@pytest.mark.parametrize("part", ["encoder", "bottleneck"])
def test_features_that_are_not_finite_raise(run, sets, part):
    broken = Run(run.path, run.recipe, copy.deepcopy(run.method), run.state)
    with torch.no_grad():
        next(getattr(broken.method.online, part).parameters()).fill_(torch.nan)
    for measure in (lambda: probe(broken, *sets, "sem", QUICK), lambda: knn(broken, *sets, "sem")):
        with pytest.raises(UserError, match="not finite"):
            measure()
