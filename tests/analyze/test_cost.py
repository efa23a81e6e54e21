"""Costs: the paper's table, a network counted by hand, and the command."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import simplicia
from simplicia import bottlenecks, encoders, methods
from simplicia.analyze.model_cost import PAPER, cost_of, paper_table
from simplicia.cli import main
from simplicia.settings import with_changes
from simplicia.train import recipes

RESULTS = Path(__file__).parents[2] / "results"


def test_all_six_rows_match_the_papers_table():
    rows = paper_table()
    assert len(rows) == len(PAPER) == 6
    for row in rows:
        apart = {name: abs(value) for name, value in row["deviation_percent"].items()}
        assert apart["parameters"] < 1 and apart["activations"] < 2 and apart["flops"] < 3, row


class _Encoder(nn.Module):
    """A convolution and its mean: small enough to count by hand."""

    out_features = 6

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_network_counted_by_hand(blocks):
    sem = bottlenecks.create("sem", 6, simplices=4, vertices=5, blocks=blocks)
    method = methods.create("byol", _Encoder(), sem, hidden=8, out=2)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    counted = simplicia.analyze.cost(method, image_size=10)
    convolution = 3 * 6 * 3 * 3  # weights; it gives 5 x 5 maps
    assert vars(counted.parts["encoder"]) == {
        "parameters": convolution,
        "activations": 6 * 5 * 5,
        "flops": convolution * 5 * 5,
    }
    embedder, first, last = 6 * 20 // blocks, 20 * 8 // blocks, 8 * 2
    assert vars(counted.parts["bottleneck"]) == {
        "parameters": embedder + 2 * 20,  # and BatchNorm's scale and shift
        "activations": 20,
        "flops": embedder,
    }
    assert vars(counted.parts["projector"]) == {
        "parameters": (first + 8) + 2 * 8 + (last + 2),
        "activations": 8 + 2,
        "flops": first + last,
    }
    assert counted.parts["predictor"].flops == 2 * 8 + 8 * 2
    assert counted.flops == convolution * 25 + embedder + first + last + 32
    assert counted.activations == 150 + 20 + 10 + 10
    trained = sum(p.numel() for p in method.parameters() if p.requires_grad)
    assert counted.parameters == trained
    assert counted.target_parameters == sum(p.numel() for p in method.target.parameters())
    for name, value in method.state_dict().items():  # counting leaves the method as it was
        assert torch.equal(value, before[name])


def test_memory_is_weights_and_two_tensors_of_each_activation():
    counted = simplicia.analyze.cost(
        methods.create("simclr", _Encoder(), bottlenecks.create("none", 6), hidden=8, out=2), 10
    )
    assert counted.target_parameters == 0
    assert counted.memory(16, "32") == 12 * counted.parameters + 4 * (2 * 2 * 16 * counted.activations)


@pytest.mark.parametrize("recipe", ["cifar100-byol", "cifar100-byol-sem"])
def test_the_memory_estimate_is_near_the_measured_peak(recipe):
    rows = json.loads((RESULTS / "bench/step.json").read_text())
    row = next(row for row in rows if row["recipe"] == recipe and not row["changes"])
    images = 50_000 * 3 * 32 * 32
    estimate = cost_of(recipes.get(recipe)).memory(row["batch_size"]) + images
    assert estimate / 2**30 == pytest.approx(row["peak_allocated_gib"], rel=0.2)


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("bottleneck", bottlenecks.names())
def test_every_method_and_bottleneck_is_counted_without_memory(name, bottleneck):
    recipe = with_changes(recipes.get(f"cifar100-{name}"), {"bottleneck": bottleneck, "encoder": "tiny"})
    counted = cost_of(recipe)
    with torch.device("meta"):
        method = recipe.build()
    assert counted.parameters == sum(p.numel() for p in method.parameters() if p.requires_grad)
    assert counted.flops > 0 and list(counted.parts)[:3] == ["encoder", "bottleneck", "projector"]


def test_smaller_views_cost_less_and_need_the_same_weights():
    full = recipes.get("cifar100-byol-sem")
    small = with_changes(full, {"view_size": 24})
    assert cost_of(small).parameters == cost_of(full).parameters
    encoders_flops = [cost_of(recipe).parts["encoder"].flops for recipe in (small, full)]
    assert encoders_flops[0] / encoders_flops[1] == pytest.approx(24**2 / 32**2, rel=0.01)


def test_a_vector_quantisers_distances_are_counted():
    encoder = encoders.create("tiny")
    vq = bottlenecks.create("vq", 128, simplices=4, vertices=8, dimensions=3)
    counted = simplicia.analyze.cost(methods.create("simclr", encoder, vq, hidden=8, out=2), 16)
    assert counted.parts["bottleneck"].flops == 128 * 12 + 4 * 8 * 3


def test_command_writes_the_numbers_it_prints(tmp_path, capsys):
    path = tmp_path / "deep/cost.json"
    assert main(["cost", "shapes-byol-sem", "--sem.vertices", "4", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["settings"]["sem"]["vertices"] == 4 and row["measured_gib"] is None
    assert row["parameters"] == sum(part["parameters"] for part in row["parts"].values())
    assert f"{row['parameters'] / 1e6:.1f} M" in capsys.readouterr().out


def test_command_rebuilds_the_stored_table(tmp_path):
    assert main(["cost", "--paper", "--json", str(tmp_path / "cost.json")]) == 0
    new = json.loads((tmp_path / "cost.json").read_text())
    stored = json.loads((RESULTS / "cost.json").read_text())
    assert new["rows"] == stored["rows"]


def test_the_page_shows_the_stored_numbers():
    page = (RESULTS.parent / "docs/cost.md").read_text()
    for row in json.loads((RESULTS / "cost.json").read_text())["rows"]:
        theirs, apart = row["paper"], row["deviation_percent"]
        cells = [row["encoder"], row["model"]]
        for name, unit, digits in (("parameters", 1e6, 1), ("activations", 1e6, 3)):
            shown = (f"{figure[name] / unit:.{digits}f} M" for figure in (row, theirs))
            cells.append("{} ({}, {:+.1f} %)".format(*shown, apart[name]))
        cells.append(f"{row['flops']:.2e} ({theirs['flops']:.2e}, {apart['flops']:+.1f} %)")
        assert f"| {' | '.join(cells)} |" in page


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["byol-sem"], "give --image-size … --encoder … --stem … --sem.simplices …"),
        (["cifar100-boyl"], "cifar100-byol"),
        (["cifar100-byol", "--encoder", "resnet81"], "resnet18"),
        (["--paper", "cifar100-byol"], "neither recipes nor settings"),
        (["--paper", "--json", "."], "not the path of a file"),
        (["cifar100-byol", "--measure", "--device", "cpu"], "measured on a GPU"),
    ],
)
def test_user_errors_are_one_line(words, answer, capsys):
    assert main(["cost", *words]) == 2
    error = capsys.readouterr().err
    assert answer in error and error.count("\n") == 1
