"""Laws of simplicial embeddings, by property and by independent derivation."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simplicia import SimNorm, SimplicialEmbedding, entropy, pack, simplicial, unpack, usage
from simplicia.layers import BlockLinear

shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 7))  # batch, simplices, vertices
temperatures = st.floats(1e-3, 10.0)


def draw(shape, seed, dtype=torch.float64, scale=3.0):
    batch, simplices, vertices = shape
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, simplices * vertices, generator=generator, dtype=dtype)


def by_hand(x, vertices, temperature):
    """The paper's equation, entry by entry."""
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], vertices):
            group = [v / temperature for v in x[row, start : start + vertices].tolist()]
            top = max(group)
            total = sum(math.exp(v - top) for v in group)
            for j, v in enumerate(group):
                out[row, start + j] = math.exp(v - top) / total
    return out


@given(shapes, temperatures, st.integers(0, 10**6))
def test_equals_the_equation_and_each_simplex_sums_to_one(shape, temperature, seed):
    x = draw(shape, seed)
    p = simplicial(x, shape[2], temperature)
    torch.testing.assert_close(p, by_hand(x, shape[2], temperature), rtol=1e-9, atol=1e-12)
    assert p.shape == x.shape and (p >= 0).all()
    torch.testing.assert_close(p.unflatten(-1, (-1, shape[2])).sum(-1), torch.ones(shape[:2], dtype=x.dtype))


@given(shapes, temperatures, st.integers(0, 10**6), st.floats(-50, 50))
def test_adding_a_constant_to_a_simplex_changes_nothing(shape, temperature, seed, shift):
    x = draw(shape, seed)
    moved = x.clone()
    moved[:, : shape[2]] += shift
    p = simplicial(x, shape[2], temperature)
    torch.testing.assert_close(simplicial(moved, shape[2], temperature), p, rtol=1e-6, atol=1e-9)


@given(shapes, st.integers(0, 10**6))
def test_temperature_limits(shape, seed):
    x = draw(shape, seed)
    vertices = shape[2]
    one_hot = simplicial(x, vertices, 0)
    assert set(one_hot.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(simplicial(x, vertices, 1e-30), one_hot)
    torch.testing.assert_close(simplicial(x, vertices, 1e9), torch.full_like(x, 1 / vertices))
    groups = x.unflatten(-1, (-1, vertices))
    assert torch.equal(one_hot.unflatten(-1, (-1, vertices)).argmax(-1), groups.argmax(-1))


@given(shapes, st.integers(0, 10**6), st.sampled_from([1.0, 0.3]))
def test_a_tensor_temperature_gives_the_same_result(shape, seed, temperature):
    x = draw(shape, seed, dtype=torch.float32)
    p = simplicial(x, shape[2], torch.tensor(temperature))
    torch.testing.assert_close(p, simplicial(x, shape[2], temperature))


def test_gradients_of_input_and_learned_temperature():
    x = draw((2, 3, 4), 0).requires_grad_()
    t = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    for temperature in (1.0, 0.3, 1e-5, torch.tensor(0.3, dtype=torch.float64)):
        assert torch.autograd.gradcheck(lambda v, t=temperature: simplicial(v, 4, t), x, atol=1e-4)
    assert torch.autograd.gradcheck(lambda v, t: simplicial(v, 4, t), (x, t))
    assert torch.autograd.gradgradcheck(lambda v: simplicial(v, 4, 0.3), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.01, 1e-4, 1e-7, torch.tensor(1e-4)])
def test_sixteen_bits_are_finite_and_near_float64(dtype, temperature):
    x = (20 * torch.randn(16, 5 * 13, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    p = simplicial(x, 13, temperature)
    p.backward(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).to(dtype))
    assert p.dtype == dtype and x.grad.dtype == dtype
    assert p.isfinite().all() and not x.grad.isnan().any()
    wide = simplicial(x.detach().double(), 13, float(temperature))
    torch.testing.assert_close(p.detach().double(), wide, rtol=0, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("temperature", [0.3, torch.tensor(0.3), 1.0])
@pytest.mark.parametrize("vertices", [13, 104])
def test_activation_checkpointing_works(vertices, temperature):
    from torch.utils.checkpoint import checkpoint

    z = torch.randn(6, 104, requires_grad=True)
    plain = torch.autograd.grad(simplicial(z, vertices, temperature).square().sum(), z)
    again = checkpoint(simplicial, z, vertices, temperature, use_reentrant=False)
    assert torch.equal(*plain, *torch.autograd.grad(again.square().sum(), z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.3, torch.tensor(0.3)])
def test_backward_saves_one_copy(dtype, temperature):
    x = torch.randn(32, 130, dtype=dtype, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        p = simplicial(x, 13, temperature)
    big = {t.untyped_storage().data_ptr(): t.nbytes for t in saved if t.numel() > 1}
    assert sum(big.values()) == p.nbytes
    assert p.untyped_storage().data_ptr() in big


@given(shapes, temperatures, st.integers(0, 10**6))
def test_entropy_between_zero_and_ln_v(shape, temperature, seed):
    vertices = shape[2]
    h = entropy(simplicial(draw(shape, seed), vertices, temperature), vertices)
    assert h.shape == shape[:2]
    assert (h >= -1e-12).all() and (h <= math.log(vertices) + 1e-9).all()


def test_entropy_at_the_corners_has_finite_value_and_gradient():
    p = torch.tensor([1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 1 / 3, 1 / 3, 1 / 3], requires_grad=True)
    h = entropy(p, 3)
    torch.testing.assert_close(h, torch.tensor([0.0, math.log(2), math.log(3)]))
    h.sum().backward()
    assert p.grad.isfinite().all()


@pytest.mark.parametrize("norm", ["batch", "layer", None])
@pytest.mark.parametrize(
    ("embedder", "blocks"), [("linear", 1), ("linear", 4), ("mlp", 1), ("mlp", 4), ("identity", 1)]
)
def test_module_is_embed_normalise_softmax(norm, embedder, blocks):
    sem = SimplicialEmbedding(
        20, simplices=4, vertices=5, temperature=0.5, norm=norm, embedder=embedder, blocks=blocks
    )
    h = torch.randn(6, 20)
    expected = torch.softmax(sem.eval().norm(sem.embedder(h)).view(6, 4, 5) / 0.5, -1)
    torch.testing.assert_close(sem(h).view(6, 4, 5), expected)
    torch.testing.assert_close(sem(h, temperature=0.1), simplicial(sem.logits(h), 5, 0.1))
    assert torch.equal(sem.codes(h), expected.argmax(-1))
    assert sem.out_features == 20 and "temperature" not in "".join(sem.state_dict())


@pytest.mark.parametrize("embedder", ["linear", "mlp"])
@pytest.mark.parametrize("norm", ["layer", None])
def test_a_batch_of_one_trains_without_batch_norm(norm, embedder):
    sem = SimplicialEmbedding(8, simplices=3, vertices=4, norm=norm, embedder=embedder)
    assert sem(torch.randn(1, 8)).shape == (1, 12)
    assert not any(isinstance(part, torch.nn.BatchNorm1d) for part in sem.modules())


@pytest.mark.parametrize("embedder", ["linear", "mlp"])
@pytest.mark.parametrize("norm", ["batch", "layer", None])
@pytest.mark.parametrize("leading", [(), (1,), (7,), (2, 3), (2, 8), (2, 3, 4)])
def test_any_leading_dimensions(norm, leading, embedder):
    sem = SimplicialEmbedding(8, simplices=3, vertices=4, norm=norm, embedder=embedder).eval()
    h = torch.randn(*leading, 8)
    assert sem(h).shape == (*leading, 12) and sem.codes(h).shape == (*leading, 3)
    torch.testing.assert_close(sem(h).view(-1, 12), sem(h.view(-1, 8)))


def test_batch_norm_counts_every_leading_position():
    torch.manual_seed(0)
    one, two = (SimplicialEmbedding(8, simplices=3, vertices=4) for _ in range(2))
    two.load_state_dict(one.state_dict())
    h = torch.randn(5, 6, 8)
    torch.testing.assert_close(one(h).view(30, 12), two(h.view(30, 8)))
    torch.testing.assert_close(one.norm.running_var, two.norm.running_var)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 10**6))
def test_block_diagonal_is_masked_dense(blocks, inner, outer, bias, seed):
    torch.manual_seed(seed)
    layer = BlockLinear(blocks * inner, blocks * outer, blocks, bias=bias)
    dense = torch.nn.Linear(blocks * inner, blocks * outer, bias=bias)
    mask = torch.kron(torch.eye(blocks), torch.ones(outer, inner))
    with torch.no_grad():
        dense.weight.copy_(torch.block_diag(*layer.weight))
        if bias:
            dense.bias.copy_(layer.bias)
    assert (dense.weight[mask == 0] == 0).all()
    x = torch.randn(2, 3, blocks * inner)
    torch.testing.assert_close(layer(x), dense(x))


def test_each_block_starts_like_its_own_linear():
    torch.manual_seed(0)
    layer = BlockLinear(800, 1600, 8)
    bound = 100**-0.5
    assert layer.weight.abs().max() <= bound and layer.bias.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(torch.nn.Linear(100, 200).weight.std().item(), rel=0.02)


@pytest.mark.parametrize("temperature", [0.3, torch.tensor(0.3)])
def test_compiles_without_a_graph_break(temperature):
    sem = SimplicialEmbedding(16, simplices=4, vertices=3)
    compiled = torch.compile(sem, fullgraph=True, backend="aot_eager")
    h = torch.randn(6, 16, requires_grad=True)
    for t in (temperature, temperature * 2):
        (grad,) = torch.autograd.grad(compiled(h, t).square().sum(), h)
        (expected,) = torch.autograd.grad(sem(h, t).square().sum(), h)
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_result_has_the_dtype_of_the_input(dtype):
    x = torch.randn(2, 12, dtype=dtype, requires_grad=True)
    p = simplicial(x, 3, torch.full((4, 1), 0.5, dtype=torch.float64))
    assert p.dtype == dtype and torch.autograd.grad(p.square().sum(), x)[0].dtype == dtype


def test_exports():
    sem = SimplicialEmbedding(16, simplices=4, vertices=3, temperature=0.5).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(sem, (torch.randn(4, 16),), dynamic_shapes={"h": {0: batch}})
    h = torch.randn(9, 16)
    torch.testing.assert_close(program.module()(h), sem(h))


@given(shapes, temperatures, st.integers(0, 10**6), st.sampled_from([torch.float64, torch.bfloat16]))
def test_hard_is_one_hot_with_the_gradient_of_the_softmax(shape, temperature, seed, dtype):
    x = draw(shape, seed, dtype).requires_grad_()
    weight = draw(shape, seed + 1, dtype)
    soft, hard = (simplicial(x, shape[2], temperature, hard=hard) for hard in (False, True))
    assert torch.equal(hard, simplicial(x.detach(), shape[2], 0))
    for p in (soft, hard):
        x.grad = None
        p.backward(weight)
        p.grad_of_x = x.grad
    assert torch.equal(soft.grad_of_x, hard.grad_of_x)


def test_hard_in_the_module_and_for_one_call():
    sem = SimplicialEmbedding(8, simplices=3, vertices=4, temperature=0.5).eval()
    h = torch.randn(5, 8)
    one_hot = simplicial(sem.logits(h), 4, 0)
    assert torch.equal(sem(h, hard=True), one_hot) and not torch.equal(sem(h), one_hot)
    sem.hard = True
    assert torch.equal(sem(h), one_hot) and torch.equal(sem(h, hard=False), sem(h, 0.5, hard=False))
    built = SimplicialEmbedding(8, simplices=3, vertices=4, hard=True)
    assert built.hard and "hard=True" in repr(built) and "hard" not in repr(SimplicialEmbedding(8, 3, 4))
    built(h, torch.tensor(0.3)).square().sum().backward()
    assert built.embedder.weight.grad.abs().sum() > 0


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_usage_counts_vertices_and_measures_redundancy(samples, simplices, vertices, seed):
    from sklearn.metrics import normalized_mutual_info_score

    codes = torch.randint(vertices, (samples, simplices), generator=torch.Generator().manual_seed(seed))
    found = usage(codes, vertices)
    for i, column in enumerate(codes.T):
        counts = [(column == v).sum().item() for v in range(vertices)]
        shares = [count / samples for count in counts if count]
        assert found.perplexity[i].item() == pytest.approx(math.prod(p**-p for p in shares), rel=1e-4)
        assert found.dead[i].tolist() == [count == 0 for count in counts]
        for j, other in enumerate(codes.T):
            wanted = normalized_mutual_info_score(column, other)
            if len(column.unique()) == 1 and len(other.unique()) == 1:
                wanted = 0.0  # scikit-learn's convention is 1
            assert found.redundancy[i, j].item() == pytest.approx(wanted, abs=1e-4)
    grouped = usage(codes[:, None].expand(-1, 3, -1), vertices)
    torch.testing.assert_close(grouped.redundancy, found.redundancy, atol=1e-4, rtol=0)


def test_usage_in_blocks_equals_usage_at_once():
    """Many simplices are compared a block at a time."""
    codes = torch.randint(40, (50, 130), generator=torch.Generator().manual_seed(0))
    codes[:, 100] = (codes[:, 3] + 7) % 40  # the same under other names
    found = usage(codes, 40)  # blocks of 80 simplices
    assert found.redundancy[100, 3].item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(found.redundancy[:9, :9], usage(codes[:, :9], 40).redundancy)
    torch.testing.assert_close(found.redundancy, found.redundancy.T)


@given(
    st.lists(st.integers(0, 4), max_size=2), st.integers(1, 20), st.integers(1, 300), st.integers(0, 10**6)
)
def test_unpack_inverts_pack_which_is_numpys_packbits(leading, simplices, vertices, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(vertices, (*leading, simplices), generator=generator)
    bits = math.ceil(math.log2(vertices))
    packed = pack(codes if vertices > 256 else codes.to(torch.uint8), vertices)
    assert packed.dtype == torch.uint8 and packed.shape == (*leading, math.ceil(simplices * bits / 8))
    assert torch.equal(unpack(packed, simplices, vertices), codes)
    ones = (codes.numpy()[..., None] >> np.arange(bits) & 1).reshape(*leading, simplices * bits)
    assert np.array_equal(packed.numpy(), np.packbits(ones, -1, bitorder="little"))


@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 10**6))
def test_simnorm_equals_the_lines_it_replaces(groups, dim, seed):
    x = torch.randn(2, 3, groups * dim, generator=torch.Generator().manual_seed(seed))
    by_hand = torch.softmax(x.view(2, 3, groups, dim), dim=-1).view(x.shape)
    torch.testing.assert_close(SimNorm(dim)(x), by_hand)
    assert not SimNorm().state_dict() and SimNorm().dim == 8 and repr(SimNorm(dim)) == f"SimNorm(dim={dim})"


def test_hard_codes_and_bits_compile_and_export():
    sem = SimplicialEmbedding(16, simplices=4, vertices=3, hard=True).eval()
    h = torch.randn(6, 16, requires_grad=True)
    compiled = torch.compile(sem, fullgraph=True, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(h, 0.3).square().sum(), h)
    (expected,) = torch.autograd.grad(sem(h, 0.3).square().sum(), h)
    torch.testing.assert_close(grad, expected)

    class Bits(torch.nn.Module):
        def forward(self, h):
            return pack(sem.codes(h), 3), sem(h)

    packed, one_hot = torch.export.export(Bits(), (h,)).module()(h)
    assert torch.equal(unpack(packed, 4, 3), sem.codes(h)) and torch.equal(one_hot, sem(h))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: simplicial(torch.ones(2, 7), 3), "7 features"),
        (lambda: simplicial(torch.ones(2, 6), 0), "at least 1"),
        (lambda: simplicial(torch.tensor(1.0), 1), "no features"),
        (lambda: simplicial(torch.ones(2, 6), 3, -0.1), "-0.1"),
        (lambda: simplicial(torch.ones(2, 6), 3, float("nan")), "nan"),
        (lambda: SimplicialEmbedding(8, 4, 0), "vertices is 0"),
        (lambda: SimplicialEmbedding(8, 0, 4), "simplices is 0"),
        (lambda: SimplicialEmbedding(8, 4, 4, temperature=-1.0), "-1.0"),
        (lambda: SimplicialEmbedding(8, 4, 4, blocks=3), "3 blocks do not divide"),
        (lambda: SimplicialEmbedding(8, 4, 4, blocks=0), "0 blocks"),
        (lambda: SimplicialEmbedding(8, 4, 4, norm="group"), "'group'"),
        (lambda: SimplicialEmbedding(8, 4, 4, embedder="conv"), "'conv'"),
        (lambda: SimplicialEmbedding(8, 4, 4, embedder="identity"), "choose them equal"),
        (lambda: entropy(torch.ones(2, 7), 3), "7 features"),
        (lambda: simplicial(torch.ones(2, 6, dtype=torch.long), 3), "floating-point"),
        (lambda: SimplicialEmbedding(12, 4, 3, embedder="identity", blocks=2), "blocks=1"),
        (lambda: SimNorm(0), "dim is 0"),
        (lambda: SimNorm(5)(torch.ones(2, 7)), "7 features"),
        (lambda: pack(torch.tensor([0, 13]), 13), "from 0 to 13"),
        (lambda: pack(torch.tensor([-1, 1]), 13), "from -1 to 1"),
        (lambda: pack(torch.ones(3), 13), "integers"),
        (lambda: unpack(torch.zeros(3, dtype=torch.uint8), 8, 13), "(..., 4)"),
        (lambda: unpack(torch.zeros(4), 8, 13), "uint8"),
        (lambda: usage(torch.ones(3), 13), "integers"),
        (lambda: usage(torch.ones(0, 4, dtype=torch.long), 13), "at least one"),
        (lambda: usage(torch.full((2, 4), 13), 13), "end at 12"),
    ],
)
def test_bad_input_raises_one_line_errors(call, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call()
    assert "\n" not in str(error.value)
