"""The theory: no pair exceeds the claimed bound, and the supremum is attained."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import simplicia
from simplicia import SimplicialEmbedding, cli
from simplicia.analyze import expressivity, expressivity_base, expressivity_supremum
from simplicia.analyze.bound import gap_term, lemma6, lemma6_largest_margin
from simplicia.analyze.tradeoff import lipschitz, tradeoff
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import logistic
from simplicia.evaluate.logistic import Dense
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import recipes

VERTICES = st.integers(2, 40)
TEMPERATURE = st.floats(-4, 3).map(lambda x: 10**x)
MARGIN = st.floats(1e-6, 1.999)
SLACK = 1 + 1e-9


def pairs(vertices, margin, seed, count=200):
    """Vectors in [-1, 1] whose first component is the largest by the margin: at random, and at the edges."""
    generator = torch.Generator().manual_seed(seed)
    top = margin - 1 + (2 - margin) * torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
    top[:, : count // 2] = 1.0  # every other component can take any value
    share_of_range = torch.rand(2, count, vertices - 1, generator=generator, dtype=torch.float64)
    share = torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
    edge = (torch.rand(share_of_range.shape, generator=generator, dtype=torch.float64) < share).double()
    share_of_range[:, ::2] = edge[:, ::2]
    others = -1 + (top - margin + 1) * share_of_range
    return torch.cat([top, others], -1)


def squared(q):
    return ((q[0] - q[1]) ** 2).sum(-1)


@given(VERTICES, TEMPERATURE, MARGIN, st.integers(0, 10**6))
def test_no_pair_exceeds_the_supremum_and_the_supremum_not_the_bound(vertices, temperature, margin, seed):
    q = pairs(vertices, margin, seed)
    largest = squared(torch.softmax(q / temperature, -1)).max().item()
    supremum = expressivity_supremum(vertices, temperature, margin)
    # a difference of probabilities near 1 / V is known to 1e-16, its square to less
    assert largest <= supremum * (1 + 1e-6) + 1e-20
    assert supremum <= expressivity(vertices, temperature, margin) * SLACK
    assert squared(q).max() <= expressivity_base(vertices, margin) * SLACK


@pytest.mark.parametrize("vertices", [2, 3, 4, 5])
@pytest.mark.parametrize(("temperature", "margin"), [(0.1, 0.1), (0.5, 0.3), (1.0, 1.2), (20.0, 0.01)])
def test_the_supremum_is_the_largest_of_all_corners(vertices, temperature, margin):
    corners = torch.tensor(
        [[1.0, *rest] for rest in itertools.product([-1.0, 1 - margin], repeat=vertices - 1)]
    )
    p = torch.softmax(corners.double() / temperature, -1)
    largest = torch.cdist(p, p, compute_mode="donot_use_mm_for_euclid_dist").max().item() ** 2
    assert expressivity_supremum(vertices, temperature, margin) == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize(
    ("vertices", "temperature", "margin"), [(3, 1.0, 0.1), (8, 0.3, 0.2), (13, 3.0, 0.5)]
)
def test_ascent_finds_the_supremum_and_no_more(vertices, temperature, margin):
    """Gradient ascent over all allowed pairs, without using corners."""
    torch.manual_seed(0)
    share_of_range = torch.rand(2, 100, vertices - 1, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.Adam([share_of_range], lr=0.02)
    for _ in range(200):
        others = -1 + (2 - margin) * share_of_range
        p = torch.softmax(torch.cat([torch.ones(2, 100, 1), others], -1) / temperature, -1)
        distances = squared(p)
        solver.zero_grad()
        (-distances.clamp_min(1e-30).log().sum()).backward()
        solver.step()
        with torch.no_grad():
            share_of_range.clamp_(0, 1)
    supremum = expressivity_supremum(vertices, temperature, margin)
    assert 0.98 * supremum <= distances.max().item() <= supremum * SLACK


@pytest.mark.parametrize(("vertices", "margin"), [(2, 0.1), (13, 0.5), (7, 1.5)])
def test_the_base_supremum_is_attained_and_ascent_finds_no_more(vertices, margin):
    high = torch.tensor([1.0] + [1 - margin] * (vertices - 1), dtype=torch.float64)
    low = torch.tensor([margin - 1] + [-1.0] * (vertices - 1), dtype=torch.float64)
    assert squared(torch.stack([high, low])).item() == pytest.approx(expressivity_base(vertices, margin))
    torch.manual_seed(0)
    q = pairs(vertices, margin, 0)
    for _ in range(200):  # uphill is away from each other; then back into the allowed set
        q = (q + 0.1 * torch.stack([q[0] - q[1], q[1] - q[0]])).clamp(-1, 1)
        q[..., 0].clamp_(min=margin - 1)
        q[..., 1:] = torch.minimum(q[..., 1:], q[..., :1] - margin)
    assert squared(q).max() <= expressivity_base(vertices, margin) * SLACK


def test_the_bound_matches_lemma_4_as_printed():
    def printed(v, tau, delta):
        one = 1 / (1 + (v - 1) * math.exp(-2 / tau)) - 1 / (1 + (v - 1) * math.exp(-delta / tau))
        low = 1 / (1 + math.exp(delta / tau) * (1 + (v - 2) * math.exp(-2 / tau)))
        high = 1 / (1 + math.exp(2 / tau) * (1 + (v - 2) * math.exp(-delta / tau)))
        return one**2 + (v - 1) * (low - high) ** 2

    for point in itertools.product([2, 3, 13, 1024], [0.05, 0.3, 1.0, 10.0], [0.01, 0.5, 1.9]):
        assert expressivity(*point) == pytest.approx(printed(*point), rel=1e-9)


def test_two_vertices_have_no_slack():
    for tau, margin in itertools.product([0.05, 1.0, 30.0], [0.01, 1.0]):
        assert expressivity(2, tau, margin) == pytest.approx(expressivity_supremum(2, tau, margin))


@given(st.one_of(VERTICES, st.just(1024)), TEMPERATURE, st.floats(0, 1))
def test_lemma_6_holds_up_to_margin_1(vertices, temperature, margin):
    assert lemma6(vertices, temperature, margin)


@given(VERTICES, TEMPERATURE)
def test_lemma_6_fails_at_large_margins(vertices, temperature):
    assert not lemma6(2, temperature, 1.5)
    beyond = (lemma6_largest_margin(vertices) + 2) / 2
    assert not lemma6(vertices, temperature, beyond)


@given(VERTICES, st.floats(0.05, 1.9))
def test_as_temperature_falls_expressivity_goes_to_0_like_an_exponential(vertices, margin):
    rate = vertices * (vertices - 1)
    tau = min(margin, 2 - margin) / 20  # exp(-margin / tau) and exp(-(2 - margin) / tau) are small
    for phi in (expressivity, expressivity_supremum):
        assert phi(vertices, 0.0, margin) == 0.0
        assert phi(vertices, tau, margin) == pytest.approx(rate * math.exp(-2 * margin / tau), rel=1e-4)
        falling = [phi(vertices, tau / 2**i, margin) for i in range(6)]
        assert falling == sorted(falling, reverse=True)


def test_extreme_settings_are_finite_and_grids_are_their_points():
    temperatures = torch.tensor([0.0, 1e-4, 1e-2, 1.0, 1e3, 1e6])
    for phi in (expressivity, expressivity_supremum):
        grid = phi(1024, temperatures, torch.tensor([[0.001], [2.0]]))
        assert grid.shape == (2, 6) and grid.isfinite().all() and (grid >= 0).all()
        assert (grid[1] == 0).all()  # margin 2 leaves one pair of vectors, which are equal
        for i, tau in enumerate(temperatures.tolist()):
            assert grid[0, i].item() == pytest.approx(phi(1024, tau, 0.001), rel=1e-6)
    assert isinstance(expressivity(13, 1.0, 0.1), float)
    np.testing.assert_allclose(expressivity_base(np.array([2, 13]), 0.5), [4.5, 29.25])


def test_the_gap_term_matches_lemma_2():
    assert gap_term(0.25, 100, lipschitz=3.0) == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ((1, 1.0, 0.1), "vertices is 1"),
        ((13, -1.0, 0.1), "temperature is -1"),
        ((13, 1.0, 2.5), "from 0 to 2"),
    ],
)
def test_arguments_out_of_range_are_refused(point, message):
    with pytest.raises(UserError, match=message):
        expressivity(*point)


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pixels = torch.randint(0, 120, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    pixels[torch.arange(count), labels] += 100  # a class is a colour
    return ImageSet("colours", pixels, labels, ("red", "green", "blue"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few steps on a few images."""
    root = tmp_path_factory.mktemp("bound")
    source = images(60, 0)
    for i, image in enumerate(source.images):
        path = root / "data" / source.classes[source.labels[i]] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    small = {"data": str(root / "data"), "encoder": "tiny", "stem": "small", "epochs": 1, "batch_size": 16}
    heads = {"sem.simplices": 8, "sem.vertices": 5, "image_size": 16, "options": {"hidden": 32, "out": 16}}
    return simplicia.pretrain("byol-sem", out=root / "run", quiet=True, **small, **heads)


def test_on_a_run_measured_is_below_supremum_is_below_bound(run):
    train = images(90, 1)
    result = tradeoff(run, train, images(60, 2), temperatures=(0.1, 1.0))
    assert [row["temperature"] for row in result["rows"]] == [None, 0.1, 1.0]
    for row in result["rows"]:
        assert 0 < row["measured"] <= row["supremum"] * 1.00001 <= row["bound"] * 1.0001
        assert row["test_loss"] - row["train_loss"] <= row["term"]
    # compute the same from all simplices of all images
    z = run.encode(train.images, "embedder").unflatten(-1, (8, 5))
    assert result["scale"] == pytest.approx(z.abs().max().item(), rel=1e-5)
    top = z.topk(2).values
    assert result["margin"]["least"] == pytest.approx(
        (top[..., 0] - top[..., 1]).min().item() / result["scale"], rel=1e-2, abs=1e-6
    )
    p = torch.softmax(z, -1)
    same = z.argmax(-1)[:, None] == z.argmax(-1)[None]
    every = (((p[:, None] - p[None]) ** 2).sum(-1) * same).max().item()
    assert 0.3 * every < result["rows"][2]["measured"] <= every * 1.0001  # a sample of the pairs


def test_the_test_loss_samples_all_test_images(run):
    test = images(60, 2)
    test.labels[:30] = (test.labels[:30] + 1) % 3  # wrong labels: another loss than the second half's
    halves = [
        dataclasses.replace(test, images=test.images[p], labels=test.labels[p])
        for p in (slice(30), slice(30, 60))
    ]
    first, second, both = (
        tradeoff(run, images(90, 1), part, temperatures=(1.0,), samples=30)["rows"][1]["test_loss"]
        for part in (*halves, test)
    )
    assert min(first, second) < both < max(first, second)


@pytest.mark.parametrize("missing", [[2], [1, 2]])
def test_classes_that_the_sample_lacks_are_not_tested(run, missing):
    train, test = images(90, 1), images(60, 2)
    kept = ~torch.isin(test.labels, torch.tensor(missing))
    some = dataclasses.replace(test, images=test.images[kept], labels=test.labels[kept])
    sample = ~torch.isin(train.labels, torch.tensor(missing))
    train = dataclasses.replace(train, images=train.images[sample], labels=train.labels[sample])
    every, known = (tradeoff(run, train, each, temperatures=(1.0,))["rows"][1] for each in (test, some))
    assert every["test_loss"] == known["test_loss"] < math.log(3)
    assert every["train_loss"] == known["train_loss"] < math.log(3)


def test_one_vertex_has_no_margin(tmp_path):
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"sem.simplices": 4, "sem.vertices": 1})
    alone = Run(tmp_path, recipe, recipe.build(), {"step": 0, "total_steps": 1})
    with pytest.raises(UserError, match="1 vertex"):
        tradeoff(alone, images(10, 1))


def test_the_lipschitz_constant_of_the_loss_is_attained():
    """Two classes attain it: along the difference of their weights, far on the wrong side."""
    sem = SimplicialEmbedding(3, simplices=2, vertices=2, norm=None).eval()
    features = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    labels = (features[:, 0] > 0).long()
    logits = sem.logits(features).detach()
    (fitted,) = logistic.fit(Dense(logits), labels, 2, [1.0])
    weight, bias = fitted.weight.T, fitted.bias
    along = (weight[1] - weight[0]) / (weight[1] - weight[0]).norm()
    steps = torch.stack([along * 50, along * 51])
    first, second = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(steps, weight, bias), torch.tensor([0, 0]), reduction="none"
    )
    assert (second - first).item() == pytest.approx(lipschitz(fitted.weight), rel=1e-3)


def test_command_prints_writes_and_draws(run, tmp_path, capsys):
    table, figure = tmp_path / "bound.json", tmp_path / "bound.svg"
    words = "bound --vertices 2 5 --margins 0.1 1.5 --temperatures 0.1 1"
    assert cli.main([*words.split(), "--json", str(table), "--figure", str(figure)]) == 0
    rows = json.loads(table.read_text())["rows"]
    assert len(rows) == 8 and rows[0]["bound"] == expressivity(2, 0.1, 0.1)
    assert [row["lemma6"] for row in rows[:4]] == [True, True, False, False]
    assert "<svg" in figure.read_text()
    assert "fails" in capsys.readouterr().out
    assert cli.main(["bound", str(run.path), "--temperatures", "0.5", "--device", "cpu"]) == 0
    result = json.loads((run.path / "results/bound-at-0.5.json").read_text())
    assert result["vertices"] == 5 and "train_loss" in result["rows"][1]
    for words, name in (("", "bound"), ("--data digits --samples 50 --network target", "digits-samples-50")):
        assert cli.main(["bound", str(run.path), *words.split(), "--device", "cpu"]) == 0
        (file,) = (run.path / "results").glob(f"*{name}*target*" if words else f"{name}.json")
        assert json.loads(file.read_text())["network"] == ("target" if words else "online")
    capsys.readouterr()
    for words in (["--samples", "3"], ["--data", "digits"], [str(run.path), "--vertices", "5"]):
        assert cli.main(["bound", *words]) == 2
        assert f"{words[-2]} does nothing with" in capsys.readouterr().err
    assert cli.main(["bound", "--figure", str(tmp_path / "bound.txt")]) == 2
