"""Each bottleneck against its definition, and in training."""

import copy
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import simplicia
from simplicia import bottlenecks, encoders, methods, simplicial
from simplicia.evaluate.knn import knn
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import checkpoint, recipes, step
from simplicia.train.step import Step

SIZES = {"simplices": 6, "vertices": 4, "dimensions": 3}


def make(name, in_features=12, **options):
    torch.manual_seed(0)
    sizes = {option: SIZES[option] for option in bottlenecks.options(name) if option in SIZES}
    return bottlenecks.create(name, in_features, **sizes, **options)


def test_embed_is_sem_without_its_softmax():
    embed, sem = make("embed"), make("sem", temperature=0.3)
    h = torch.randn(8, 12)
    assert not isinstance(embed, simplicia.SimplicialEmbedding)
    torch.testing.assert_close(simplicial(embed(h), 4, 0.3), sem(h))


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.floats(0.05, 20),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_gumbel_is_one_hot_with_the_gradient_of_its_soft_sample(simplices, vertices, tau, as_tensor, seed):
    torch.manual_seed(seed)
    gumbel = bottlenecks.create("gumbel", 3, simplices=simplices, vertices=vertices, norm=None)
    h = torch.randn(7, 3, requires_grad=True)
    weights = torch.randn(7, simplices * vertices)
    torch.manual_seed(seed)
    hard = gumbel(h, torch.tensor(tau) if as_tensor else tau)
    groups = hard.unflatten(-1, (simplices, vertices))
    assert ((groups == 0) | (groups == 1)).all() and (groups.sum(-1) == 1).all()
    (grad,) = torch.autograd.grad((hard * weights).sum(), h)

    torch.manual_seed(seed)  # the same noise, and torch's own softmax
    noise = -torch.empty(7, simplices * vertices).exponential_().log()
    logits = (gumbel.logits(h) + noise).unflatten(-1, (simplices, vertices))
    assert torch.equal(groups.argmax(-1), logits.argmax(-1))
    soft = torch.softmax(logits / tau, -1).flatten(-2)
    (expected,) = torch.autograd.grad((soft * weights).sum(), h)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


def test_gumbel_samples_in_proportion_and_evaluates_to_the_argmax():
    gumbel = make("gumbel", norm=None)
    h = torch.randn(1, 12)
    shares = gumbel(h.expand(20_000, -1)).mean(0)
    torch.testing.assert_close(shares, simplicial(gumbel.logits(h), 4)[0], atol=0.02, rtol=0)
    gumbel.eval()
    assert torch.equal(gumbel(h), simplicial(gumbel.logits(h), 4, 0.0))
    assert torch.equal(gumbel(h).unflatten(-1, (6, 4)).argmax(-1), gumbel.codes(h))


def test_vector_quantisation_is_the_nearest_code_and_passes_gradients_through():
    vq = make("vq").eval()
    h = torch.randn(8, 12, requires_grad=True)
    z = vq.embed(h).unflatten(-1, (6, 3))
    distances = (z[:, :, None] - vq.codebook).square().sum(-1)  # (N, L, V)
    assert torch.equal(vq.codes(h), distances.argmin(-1))
    nearest = torch.stack([vq.codebook[i, code] for i, code in enumerate(distances.argmin(-1).T)], 1)
    out = vq(h)
    assert torch.equal(out, nearest.flatten(1))
    torch.testing.assert_close(vq.penalty, vq.commitment * (z - nearest).square().mean())
    weights = torch.randn_like(out)
    (grad,) = torch.autograd.grad((out * weights).sum(), h, retain_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad((z.flatten(1) * weights).sum(), h)[0])
    logits = vq.logits(h).unflatten(-1, (6, 4))
    torch.testing.assert_close(logits.diff(dim=-1), -distances.diff(dim=-1), rtol=1e-4, atol=1e-4)


def test_the_shared_codebook_is_one_for_all_positions_and_learns_by_the_loss():
    vq = make("vq-shared", commitment=0.02)
    assert [name for name, _ in vq.named_parameters() if "codebook" in name] == ["codebook"]
    h = torch.randn(8, 12, requires_grad=True)
    z = copy.deepcopy(vq).embed(h).unflatten(-1, (6, 3))
    distances = (z[:, :, None] - vq.codebook).square().sum(-1)  # (N, L, V)
    nearest = vq.codebook[distances.argmin(-1)]
    out = vq(h)
    torch.testing.assert_close(out, nearest.flatten(1))
    torch.testing.assert_close(vq.penalty, 5 * 0.02 * (z - nearest).square().mean())
    grads = torch.autograd.grad(vq.penalty, (h, vq.codebook), retain_graph=True)
    by_hand = 0.02 * (z - nearest.detach()).square().mean(), 0.08 * (z.detach() - nearest).square().mean()
    expected = torch.autograd.grad(sum(by_hand), (h, vq.codebook), retain_graph=True)
    for grad, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-6)
    weights = torch.randn_like(out)
    (through,) = torch.autograd.grad((out * weights).sum(), h)
    torch.testing.assert_close(through, torch.autograd.grad((z.flatten(1) * weights).sum(), h)[0])


@pytest.mark.parametrize("name", ["byol", "dino", "moco"])
def test_both_networks_use_the_shared_codebook(name):
    method, seen = method_with(name, "vq-shared"), []
    online, target = method.online.bottleneck, method.target.bottleneck
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=1.0)
    target.register_forward_pre_hook(
        lambda *_: seen.append((target.codebook.clone(), online.codebook.clone()))
    )
    first = online.codebook.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        method(views()).loss.backward()
        optimizer.step()
        method.after_step()
    assert all(torch.equal(*pair) for pair in seen) and not torch.equal(seen[-1][0], first)


def test_codes_are_moving_averages_of_their_vectors():
    vq = make("vq", decay=0.9, dead_code_threshold=0.0)
    vq.counts.fill_(1.0)
    sums, counts = vq.codebook.double(), vq.counts.double()  # of the moving averages, written out
    for seed in range(3):
        h = torch.randn(8, 12, generator=torch.Generator().manual_seed(seed))
        z = copy.deepcopy(vq).embed(h).unflatten(-1, (6, 3)).detach()
        codes = (z[:, :, None] - vq.codebook).square().sum(-1).argmin(-1)
        vq(h)
        for i in range(6):
            for v in range(4):
                mine = z[codes[:, i] == v, i].double()
                sums[i, v] = 0.9 * sums[i, v] + 0.1 * mine.sum(0)
                counts[i, v] = 0.9 * counts[i, v] + 0.1 * len(mine)
        torch.testing.assert_close(vq.counts.double(), counts, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(vq.codebook.double(), sums / counts[..., None], rtol=1e-4, atol=1e-5)


def test_agrees_with_vector_quantize_pytorch():
    library = pytest.importorskip("vector_quantize_pytorch")
    vq = make("vq", dead_code_threshold=0.0, embedder="linear", norm=None, commitment=0.25)
    vq.counts.fill_(1.0)
    theirs = library.VectorQuantize(
        dim=18,
        heads=6,
        separate_codebook_per_head=True,
        codebook_dim=3,
        codebook_size=4,
        decay=0.99,
        threshold_ema_dead_code=0,
        commitment_weight=0.25,
    )
    for name in ("embed", "embed_avg"):
        getattr(theirs._codebook, name).copy_(vq.codebook)
    for _ in range(3):
        h = torch.randn(8, 12)
        expected, codes, loss = theirs(vq.embed(h))
        torch.testing.assert_close(vq(h), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(vq.penalty, loss.squeeze(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(vq.codebook, theirs._codebook.embed, rtol=1e-3, atol=1e-4)
        assert codes.shape == (8, 6)


def test_the_first_batch_initialises_codes_and_dead_ones_restart():
    vq = make("vq", norm="layer")  # a layer norm gives the same z for training and evaluation
    h = torch.randn(64, 12)
    z = vq.embed(h).unflatten(-1, (6, 3)).detach()
    vq._restart_dead_codes(z.transpose(0, 1))
    nearest = (vq.codebook[None] - z[:, :, None]).square().sum(-1).amin(0)
    assert nearest.max() == 0  # each code is one of the samples
    assert (vq.counts == 64 / 4).all()
    before = vq.codebook.clone()
    vq.counts[2, 1] = 0.01
    vq._restart_dead_codes(z.transpose(0, 1) + 100)
    assert (vq.codebook[2, 1] > 50).all()
    vq.codebook[2, 1] = before[2, 1]
    assert torch.equal(vq.codebook, before)


@pytest.mark.parametrize("options", [{"dead_code_threshold": 0.0}, {"decay": 0.0}])
def test_unused_codes_stay_finite(options):
    vq = make("vq", **options)
    for _ in range(5):
        assert vq(torch.randn(3, 12)).isfinite().all()  # fewer than there are codes
    assert vq.codebook.isfinite().all()


@pytest.mark.parametrize("name", bottlenecks.names())
def test_evaluation_is_deterministic_and_changes_nothing(name):
    bottleneck = make(name)
    bottleneck(torch.randn(16, 12))
    bottleneck.eval()
    before = {k: v.clone() for k, v in bottleneck.state_dict().items()}
    h = torch.randn(5, 12)
    first = bottleneck(h)
    assert torch.equal(first, bottleneck(h))
    for key, value in bottleneck.state_dict().items():
        assert torch.equal(value, before[key])
    assert first.shape == (5, bottleneck.out_features)
    torch.testing.assert_close(bottleneck(h[None, :, None])[0, :, 0], first)  # any leading dimensions


@pytest.mark.parametrize("name", bottlenecks.names())
def test_copies_and_loaded_states_are_equal(name):
    bottleneck = make(name)
    (bottleneck(torch.randn(16, 12, requires_grad=True)).sum() + bottleneck.penalty).backward()
    bottleneck(torch.randn(16, 12, requires_grad=True))  # its penalty still holds a graph
    twin, other = copy.deepcopy(bottleneck), make(name)
    other.load_state_dict(bottleneck.state_dict(), strict=True)
    h = torch.randn(16, 12)
    outputs = []
    for each in (bottleneck, twin, other):
        torch.manual_seed(1)
        outputs.append((each(h), dict(each.state_dict())))
    for output, state in outputs[1:]:
        assert torch.equal(output, outputs[0][0])
        assert all(torch.equal(state[k], v) for k, v in outputs[0][1].items())
    assert twin.penalty == bottleneck.penalty


def method_with(name, bottleneck, **options):
    torch.manual_seed(0)
    encoder = encoders.create("tiny")
    return methods.create(name, encoder, make(bottleneck, 128, **options), **small(name, hidden=64))


def small(name, hidden):
    return {k: v for k, v in {"hidden": hidden, "queue": 64}.items() if k in methods.options(name)}


def views(n=16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, 16, 16, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("name", ["byol", "simclr"])
def test_the_penalty_is_the_mean_over_both_views(name):
    method, free = method_with(name, "vq"), method_with(name, "vq", commitment=0.0)
    by_hand = copy.deepcopy(method.online)
    losses = []
    for each in (method, free):
        torch.manual_seed(1)
        losses.append(each(views()).loss)
    torch.manual_seed(1)
    penalties = []
    for view in views():
        by_hand(view)
        penalties.append(by_hand.bottleneck.penalty)
    assert penalties[0] != penalties[1]
    torch.testing.assert_close(losses[0] - losses[1], sum(penalties) / 2, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bottleneck", ["gumbel", "vq", "vq-shared"])
def test_training_compiles_without_a_graph_break(bottleneck):
    plain = method_with("byol", bottleneck)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    losses = []
    for method in (plain, compiled):
        torch.manual_seed(1)
        losses.append(method(views()).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    for (key, a), b in zip(plain.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, key=key: f"{key}: {text}")
    trained = [(key, p.grad) for key, p in plain.named_parameters() if p.requires_grad]
    scale = max(grad.abs().max() for _, grad in trained)
    for (key, grad), q in zip(trained, (q for q in twin.parameters() if q.requires_grad), strict=True):
        assert (grad - q.grad).abs().max() <= 1e-4 * scale, key


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("bottleneck", ["sem", "embed", "gumbel", "vq", "vq-shared"])
@pytest.mark.parametrize("blocks", [2, 3, 6])
def test_any_number_of_blocks_that_divides_the_features(name, bottleneck, blocks):
    torch.manual_seed(0)
    made = make(bottleneck, blocks=blocks)
    encoder = encoders.create("tiny")
    encoder = torch.nn.Sequential(encoder, torch.nn.Linear(128, 12))
    method = methods.create(name, encoder, made, **small(name, hidden=12))
    first = next(m for m in method.online.projector.modules() if isinstance(m, simplicia.layers.BlockLinear))
    assert first.blocks == blocks
    method(views(8)).loss.backward()
    assert first.weight.grad.abs().sum() > 0
    embedder = made.embed.embedder if "vq" in bottleneck else made.embedder
    assert embedder.weight.shape[0] == blocks and embedder.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("embedder", ["identity", "linear", "mlp"])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("decay", [None, 0.0])
def test_every_embedder_trains_a_step(embedder, norm, decay):
    changes = {
        "sem": {"simplices": 32, "vertices": 4, "embedder": embedder, "norm": norm},
        "optim.embedder_weight_decay": decay,
        "optim.weight_decay": 1e-3,
    }
    recipe = with_changes(recipes.get("shapes-byol-sem"), changes)
    recipe.checked()
    torch.manual_seed(0)
    method = recipe.build()
    optimizer = step.create_optimizer(method, recipe.optim, method.rates(), torch.tensor(0.1))
    of = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    before = {name: p.detach().clone() for name, p in method.named_parameters() if p.requires_grad}
    loss = method(views()).loss
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for name, p in method.named_parameters():
        if p.requires_grad:
            own = decay if name.startswith("online.bottleneck.") and decay is not None else 1e-3
            assert of[id(p)] == (0.0 if p.ndim == 1 else own), name
            assert not torch.equal(p, before[name]), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty small images without labels."""
    path = tmp_path_factory.mktemp("photos")
    for i, image in enumerate(simplicia.data.datasets.load("shapes", "test").images[:40]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:03d}.png")
    return path


def settings(folder, bottleneck):
    return {
        "sem.simplices": 6,
        "sem.vertices": 4,
        "data": str(folder),
        "epochs": 3,
        "batch_size": 16,
        "image_size": 16,
        "encoder": "tiny",
        "stem": "small",
        "options": {"hidden": 32, "out": 16},
        "log_every": 2,
        "quiet": True,
    }


@pytest.mark.parametrize("bottleneck", ["embed", "gumbel", "vq", "vq-shared"])
def test_a_resumed_run_equals_the_uninterrupted_run_bit_for_bit(bottleneck, folder, tmp_path, monkeypatch):
    name = f"byol-{bottleneck}"
    uninterrupted = simplicia.pretrain(name, out=tmp_path / "uninterrupted", **settings(folder, bottleneck))
    original = Step.__call__

    def stop_after_three(self, number):
        output = original(self, number)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return output

    with monkeypatch.context() as patch, pytest.raises(simplicia.errors.Interrupted):
        patch.setattr(Step, "__call__", stop_after_three)
        simplicia.pretrain(name, out=tmp_path / "broken", **settings(folder, bottleneck))
    resumed = simplicia.pretrain(name, out=tmp_path / "broken", resume=True, quiet=True)
    one, two = (
        checkpoint.read(checkpoint.latest(r.path / "checkpoint"))[0] for r in (uninterrupted, resumed)
    )
    assert one.keys() == two.keys()
    for key in one:
        assert torch.equal(one[key], two[key]), key
    if bottleneck == "vq":
        assert one["method.online.bottleneck.counts"].sum() > 0
        different = one["method.online.bottleneck.codebook"] != one["method.target.bottleneck.codebook"]
        assert different.any()  # each is updated from its own batches


@pytest.mark.parametrize(
    ("bottleneck", "default", "layers"),
    [
        ("none", "encoder", ("encoder",)),
        ("sem", "sem", ("encoder", "embedder", "sem", "codes")),
        ("embed", "embedder", ("encoder", "embedder", "sem", "codes")),
        ("gumbel", "codes", ("encoder", "embedder", "codes")),
        ("vq", "quantised", ("encoder", "embedder", "quantised", "codes")),
        ("vq-shared", "quantised", ("encoder", "embedder", "quantised", "codes")),
    ],
)
def test_a_run_offers_the_layers_of_its_bottleneck(bottleneck, default, layers, tmp_path):
    changes = {"bottleneck": bottleneck, "sem.simplices": 6, "sem.vertices": 4, "vq.dimensions": 3}
    recipe = with_changes(recipes.get("shapes-byol"), changes)
    torch.manual_seed(0)
    state = {"step": 0, "total_steps": 1, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    run = Run(tmp_path, recipe, recipe.build(), state)
    assert run.layers() == layers and run.check_layer(None) == default
    images = simplicia.data.datasets.load("shapes", "test").images[:6]
    widths = {"encoder": 128, "embedder": 24, "sem": 24, "codes": 6, "quantised": 18}
    if "vq" in bottleneck:
        widths["embedder"] = 18
    for layer in layers:
        assert run.encode(images, layer).shape == (6, widths[layer])
    features = run.encode(images, "encoder")
    own = run.method.online.bottleneck
    if default != "codes":  # the default is what the bottleneck gives in evaluation
        assert torch.equal(run.encode(images), own(features))
    if "codes" in layers:  # as one-hot vectors, which probes and neighbours take for codes
        one_hot = represent(run.network(), features, "sem", 0.0)
        assert torch.equal(one_hot.unflatten(-1, (6, 4)).argmax(-1), run.encode(images, "codes"))
    if bottleneck == "embed":  # the softmax comes only downstream
        downstream = run.encode(images, "sem", temperature=0.1)
        torch.testing.assert_close(downstream, simplicial(run.encode(images, "embedder"), 4, 0.1))
    for layer in {"sem", "quantised", "codes"} - set(layers):
        with pytest.raises(simplicia.UserError, match=f"no layer '{layer}'.*'encoder'"):
            run.check_layer(layer)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make("gumbel", temperature=0.0), "positive"),
        (lambda: make("gumbel")(torch.randn(4, 12), 0.0), "positive"),
        (lambda: bottlenecks.create("vq", 12, simplices=2, vertices=0), "vertices is 0"),
        (lambda: bottlenecks.create("vq", 12, temprature=1), "option of bottleneck 'vq'"),
        (lambda: bottlenecks.create("gumble", 12), "'gumbel'"),
        (lambda: make("vq", embedder="identity"), "choose them equal"),
    ],
)
def test_bad_input_raises_one_line_errors(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_former_option_name_still_works():
    assert make("vq", revive=0.3).dead_code_threshold == 0.3
    assert with_changes(recipes.get("byol-vq"), {"vq.revive": 0.3}).vq.dead_code_threshold == 0.3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bottleneck": "gumbel", "sem.temperature": 0}, "positive"),
        ({"vq.decay": 1.0}, "vq.decay is 1.0"),
        ({"vq.dimensions": 0}, "vq.dimensions is 0"),
        ({"vq.commitment": -1}, "vq.commitment is -1"),
        ({"vq.dead_code_threshold": 2}, "vq.dead_code_threshold is 2"),
        ({"optim.embedder_weight_decay": -1}, "embedder_weight_decay is -1"),
    ],
)
def test_impossible_settings_raise_one_line_errors(changes, words):
    with pytest.raises(simplicia.UserError, match=words):
        with_changes(recipes.get("cifar100-byol-sem"), changes).checked()


def test_named_recipes_match_the_papers_comparisons():
    gumbel, vq, sem8, embed = (recipes.get(f"cifar100-byol-{n}") for n in ("gumbel", "vq", "sem8", "embed"))
    assert (gumbel.sem.simplices, gumbel.sem.vertices, gumbel.sem.temperature) == (5000, 13, 2.0)
    assert (vq.sem.simplices, vq.sem.vertices, vq.vq.dimensions) == (512, 128, 32)
    shared = recipes.get("cifar100-byol-vq-shared")
    assert (shared.sem.simplices, shared.sem.vertices, shared.vq.dimensions) == (512, 128, 16)
    assert (sem8.bottleneck, sem8.sem.blocks) == ("sem", 8)
    assert (embed.bottleneck, embed.sem.simplices, embed.sem.vertices) == ("embed", 5000, 13)


def test_docs_state_the_stored_numbers():
    root = Path(__file__).parents[1]
    stored = json.loads((root / "results/bench/vq.json").read_text())
    sizes = f"{stored['simplices']} x {stored['vertices']} x {stored['dimensions']}"
    graph = {name: "no" if why else "yes" for name, why in stored["obstacle_to_one_graph"].items()}
    page = (root / "docs/bottlenecks.md").read_text()
    words = f"ours {graph['ours']}, library {graph['library']}"
    assert f"| {stored['batch']} | {sizes} | {stored['ratio']:.1f} | {words} |" in page


def test_byol_learns_the_shapes(tmp_path):
    small = {"epochs": 2, "image_size": 16, "sem.simplices": 64, "quiet": True}
    run = simplicia.pretrain("shapes-byol-sem", out=tmp_path / "run", **small)
    torch.manual_seed(run.recipe.seed)
    untrained = Run(run.path, run.recipe, run.recipe.build(), run.state)
    train, test = (simplicia.data.datasets.load("shapes", split) for split in ("train", "test"))
    after, before = (knn(each, train, test)["accuracy"] for each in (run, untrained))
    assert after > before + 5  # points; the standard error of each is about 1.5
