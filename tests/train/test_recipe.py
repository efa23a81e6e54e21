"""Recipes: the table matches the paper, names are checked, written recipes can be read back."""

import dataclasses
import re
from pathlib import Path

import pytest

from simplicia.errors import UserError
from simplicia.settings import as_dict, from_dict, with_changes
from simplicia.train import recipes
from simplicia.train.recipe import OptimSettings, Recipe, read_yaml, write_yaml
from simplicia.train.step import learning_rate


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_valid_and_survives_a_round_trip(name, tmp_path):
    recipe = recipes.get(name)
    recipe.checked()
    write_yaml(recipe, tmp_path / "recipe.yaml")
    assert read_yaml(tmp_path / "recipe.yaml") == recipe


def test_a_recipe_is_written_atomically(tmp_path, monkeypatch):
    path, write = tmp_path / "recipe.yaml", Path.write_text

    def killed(self, text, **kwargs):
        write(self, text[:100], **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        write_yaml(recipes.get("byol"), path)
    assert not path.exists()


def test_names_cover_named_data_sets_and_image_folders():
    names = recipes.names()
    assert len(names) == len(set(names)) == 4 * (7 * 3 + 4) + 2 * 2 * 3
    assert {"cifar100-byol-sem", "cifar10-vicreg", "shapes-dino-sem", "byol", "moco-sem"} <= set(names)


def test_cifar_recipes_match_the_paper():
    byol, moco, swav = (recipes.get(f"cifar100-{m}-sem") for m in ("byol", "moco", "swav"))
    assert (byol.optim.lr, byol.optim.weight_decay, byol.optim.eta, byol.epochs) == (1.0, 1e-5, 0.02, 1000)
    assert (byol.sem.simplices, byol.sem.vertices, byol.batch_size) == (5000, 13, 256)
    assert (moco.sem.temperature, moco.sem.second_temperature) == (0.04, 0.01)
    assert (moco.optim.name, moco.optim.exclude_1d) == ("sgd", False)
    assert (swav.optim.min_lr, swav.optim.exclude_1d, swav.views.solarise) == (6e-4, False, (0.0, 0.0))
    assert recipes.get("cifar100-vicreg").views.crop_scale == (0.2, 1.0)
    assert recipes.get("cifar100-byol").bottleneck == "none"
    # where the paper has a single temperature, one setting changes both
    for name in ("byol-sem", "dino-sem", "vicreg-sem", "byol-gumbel"):
        recipe = recipes.get(f"cifar100-{name}")
        assert recipe.sem.temperature > 0 and recipe.sem.second_temperature is None


def test_imagenet_recipes_match_the_paper():
    base, sem = (recipes.get(f"imagenet-byol{tail}") for tail in ("", "-sem"))
    for recipe in (base, sem):
        recipe.checked()
        optim, views = recipe.optim, recipe.views
        assert (optim.lr, optim.weight_decay, optim.eta, optim.name) == (0.4, 1e-6, 0.001, "lars")
        assert (recipe.encoder, recipe.stem, recipe.image_size, recipe.epochs) == (
            "resnet50",
            "imagenet",
            224,
            200,
        )
        assert (views.blur, views.solarise, recipe.actual_decode_size) == ((1.0, 0.1), (0.0, 0.2), 256)
        assert (recipe.batch_size, recipe.micro_batch_size(), recipe.accumulation_steps()) == (
            4096,
            256,
            16,
        )  # in the paper's code
        small = with_changes(recipe, {"batch_size": 256})  # in its text
        assert (small.micro_batch_size(), small.accumulation_steps()) == (256, 1)
    assert (base.bottleneck, sem.bottleneck) == ("none", "sem")
    settings = sem.sem
    assert (settings.simplices, settings.vertices) == (5000, 21)
    assert (settings.temperature, settings.second_temperature) == (0.16, 0.04)


def test_changes_by_dotted_name_and_by_dict():
    recipe = with_changes(
        recipes.get("cifar100-byol-sem"),
        {
            "epochs": "5",
            "sem.vertices": 7,
            "optim": {"lr": 0.1},
            "options.momentum": 0.9,
            "views.blur": ["0.5", "0"],
        },
    )
    assert (recipe.epochs, recipe.sem.vertices, recipe.optim.lr) == (5, 7, 0.1)
    assert recipe.views.blur == (0.5, 0.0) and recipe.options == {"momentum": 0.9}
    assert recipe.sem.simplices == 5000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epoch": 3}, "epochs"),
        ({"sem.vertex": 3}, "sem.vertices"),
        ({"sem.vertices.x": 3}, "sem.vertices.x"),
        ({"epochs": "many"}, "a whole number"),
        ({"epochs": 2.5}, "a whole number"),
        ({"epochs": True}, "a whole number"),
        ({"optim.lr": "fast"}, "a number"),
        ({"optim.lr": "nan"}, "a number"),
        ({"optim.per_epoch": "maybe"}, "true or false"),
        ({"stem": "huge"}, "'small'"),
        ({"views.crop_scale": [0.1]}, "2 values"),
        ({"sem": 3}, "mapping"),
    ],
)
def test_invalid_changes_raise_one_line_errors(changes, words):
    with pytest.raises(UserError, match=re.escape(words)) as error:
        with_changes(Recipe(), changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 1}, "BatchNorm"),
        ({"optim.lr": -1}, "optim.lr"),
        ({"method": "boyl"}, "byol"),
        ({"bottleneck": "sen"}, "sem"),
        ({"options": {"momentun": 1}}, "momentum"),
        ({"loggers": ["tensorbored"]}, "tensorboard"),
        ({"views.grey": 2}, "grey"),
        ({"checkpoint_minutes": 0}, "checkpoint_minutes"),
        ({"sem.temperature": 0}, "one-hot codes pass no gradient"),
        ({"views.blur": [0.5], "views.solarise": [0.0]}, "a method takes 2 views"),
        ({"sem.vertices": 1}, "a simplex of one vertex is always 1"),
        ({"image_size": 1}, "image_size is 1"),
        ({"view_size": 1}, "view_size is 1"),
    ],
)
def test_invalid_recipes_raise_one_line_errors(changes, words):
    with pytest.raises(UserError, match=re.escape(words)) as error:
        with_changes(Recipe(), changes).checked()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sem.vertices": 0}, "vertices is 0"),
        ({"sem.blocks": 7}, "7 blocks"),
        ({"encoder": "resnet81"}, "resnet18"),
    ],
)
def test_recipes_that_cannot_be_built_raise_errors(changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        with_changes(recipes.get("shapes-byol-sem"), changes).build()


@pytest.mark.parametrize(
    "text",
    [
        "- a list",
        "epochs: [",
        "epochs: 3\nepocs: 4",
        "sem: {vertices: x}",
        "\x00",
        "!!python/object:os.system {}",
    ],
)
def test_a_broken_recipe_file_raises_a_one_line_error(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml") as error:
        read_yaml(path)
    assert "\n" not in str(error.value)


def test_a_recipe_survives_conversion_to_a_dict():
    recipe = recipes.get("swav-sem")
    assert from_dict(as_dict(recipe), Recipe) == recipe
    assert all(f.name in as_dict(recipe) for f in dataclasses.fields(Recipe))


def test_learning_rate_warms_up_and_falls():
    settings = OptimSettings(lr=1.0, warmup_epochs=10, warmup_lr=3e-5, lr_per_epoch=True)
    rates = [learning_rate(settings, 512, epoch, 100) for epoch in range(100)]
    assert rates[0] == 3e-5 and rates[9] == rates[10] == 2.0
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(1.0) and 0 < rates[99] < 0.01
    per_step = OptimSettings(lr=1.0, warmup_epochs=1, lr_per_epoch=False, min_lr=0.1)
    assert learning_rate(per_step, 256, 0.5, 10) == pytest.approx(0.5, abs=1e-4)
    assert learning_rate(per_step, 256, 10.0, 10) == pytest.approx(0.1)
    assert max(learning_rate(settings, 256, e, 3) for e in range(3)) == 1.0  # fewer than warm-up epochs


def test_projector_inputs_are_centred_by_default():
    method = recipes.get("shapes-byol-sem").build()
    assert method.online.offset == method.target.offset == 1 / method.online.bottleneck.vertices
    plain = with_changes(recipes.get("shapes-byol-sem"), {"sem.centred": False}).build()
    assert plain.online.offset == plain.target.offset == 0


@pytest.mark.parametrize("text", ["data: " + "[" * 3000, "data: 2020-13-45", "data: \x00", "data: [", "7"])
def test_a_file_that_is_not_a_recipe_raises_an_error(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml"):
        read_yaml(path)


def test_build_uses_the_checked_options():
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"options": {"momentum": "0.98", "hidden": 32.0}})
    recipe = recipe.checked()
    assert recipe.options["momentum"] == 0.98 and type(recipe.options["hidden"]) is int
    assert recipe.build().momenta[0] == 0.98


def test_imagenet_has_byol_and_moco_at_three_widths():
    for method, lr, decay, batch in (("byol", 0.4, 1e-6, 4096), ("moco", 0.3, 3e-5, 256)):
        for tail in ("", "-sem"):
            for width, encoder in (("", "resnet50"), ("-x2", "resnet50x2"), ("-x4", "resnet50x4")):
                recipe = recipes.get(f"imagenet-{method}{tail}{width}").checked()
                assert (recipe.method, recipe.encoder, recipe.epochs) == (method, encoder, 200)
                assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.batch_size) == (lr, decay, batch)
                assert recipe.process_batch_size == 256 // {"": 1, "-x2": 2, "-x4": 4}[width]
                assert recipe.bottleneck == ("sem" if tail else "none")
                sem = recipe.sem
                sizes = sem.simplices, sem.vertices, sem.temperature, sem.second_temperature
                assert sizes == (5000, 21, 0.16, 0.04)
    byol = recipes.get("imagenet-byol")  # eight GPUs take their 512 images in two passes, not in 16
    assert [byol.accumulation_steps(n) for n in (1, 8, 16, 32)] == [16, 2, 1, 1]
    assert [byol.micro_batch_size(n) for n in (1, 8, 16, 32)] == [256, 2048, 4096, 4096]


def test_entropy_weight_is_for_simplices():
    recipe = with_changes(recipes.get("shapes-byol-sem"), {"sem.entropy_weight": 0.5})
    assert recipe.checked().build().entropy_weight == 0.5
    with pytest.raises(UserError, match="has no simplices"):
        with_changes(recipe, {"bottleneck": "embed"}).checked()
