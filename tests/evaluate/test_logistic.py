"""Logistic regression: every solver against scikit-learn, on dense features and on codes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from simplicia.errors import UserError
from simplicia.evaluate import logistic
from simplicia.evaluate.logistic import (
    Codes,
    Dense,
    Rotated,
    choose_solver,
    fit,
    predict_along,
    solve,
)

CLASSES, VERTICES = 5, 4
PATH = [1e5, 1e2, 1.0, 1e-2, 1e-4, 1e-6]


def codes(n, simplices, seed=0, share=0.4):
    """Codes that agree with those of their class now and then; classes of different sizes."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) ** 1.5 * CLASSES).long()
    labels[:CLASSES] = torch.arange(CLASSES)
    own = torch.randint(VERTICES, (CLASSES, simplices), generator=g)
    kept = torch.rand(n, simplices, generator=g) < share
    drawn = torch.where(kept, own[labels], torch.randint(VERTICES, (n, simplices), generator=g))
    return Codes(drawn, VERTICES), labels


def dense(n, features, seed=0):
    """Features of different scales, away from the origin."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    labels[:CLASSES] = torch.arange(CLASSES)
    means = torch.randn(CLASSES, features, generator=g)
    scale = torch.logspace(-0.3, 0.3, features)
    return Dense((torch.randn(n, features, generator=g) + means[labels]) * scale + 1), labels


SETS = {
    "wide codes": lambda: codes(60, 40),
    "long codes": lambda: codes(400, 10, share=0.2),
    "wide dense": lambda: dense(50, 90),
    "long dense": lambda: dense(300, 8),
}


def reference(x, y, regulariser):
    """The objective's least value by scikit-learn, by hand; and its guesses."""
    model = LogisticRegression(C=1 / regulariser, tol=1e-12, max_iter=100_000).fit(x, y)
    log_p = model.predict_log_proba(x)[np.arange(len(y)), y]
    return -log_p.sum() + regulariser / 2 * (model.coef_**2).sum(), model


@pytest.mark.parametrize("solver", ["rotate", "direct", "sklearn"])
@pytest.mark.parametrize("name", SETS)
def test_every_solver_finds_scikit_learns_optimum(name, solver):
    matrix, labels = SETS[name]()
    other, _ = (codes if "codes" in name else dense)(
        200, {"wide codes": 40, "long codes": 10}.get(name) or matrix.shape[1], seed=1
    )
    x = matrix.sparse()
    path = PATH if "codes" in name and solver != "sklearn" else PATH[:4]  # scikit-learn takes minutes
    for regulariser, result in zip(path, fit(matrix, labels, CLASSES, path, solver), strict=True):
        loss, model = reference(x, labels.numpy(), regulariser)
        scores = matrix.times(result.weight) + result.bias
        own = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        own += regulariser / 2 * result.weight.square().sum()
        assert result.converged
        assert own.item() == pytest.approx(result.loss, rel=1e-8, abs=1e-12)
        assert result.loss == pytest.approx(loss, rel=1e-6)
        guesses = (other.times(result.weight) + result.bias).argmax(1).numpy()
        near = np.sort(model.decision_function(other.sparse()), 1)
        clear = near[:, -1] - near[:, -2] > 1e-3 * (near[:, -1] - near[:, 0])
        assert clear.mean() > 0.9
        assert (guesses == model.predict(other.sparse()))[clear].all()


def test_weak_regularisers_on_features_of_all_scales_converge():
    matrix, labels = dense(300, 8)
    scaled = Dense(matrix.features * torch.logspace(-2, 1, 8))
    turned, direct = (list(fit(scaled, labels, CLASSES, PATH, solver)) for solver in ("rotate", "direct"))
    for one, other in zip(turned, direct, strict=True):
        assert one.converged and other.converged
        assert one.loss == pytest.approx(other.loss, rel=1e-8)


def test_two_classes_have_the_same_objective():
    matrix, labels = dense(80, 6)
    labels = labels % 2
    result = [next(fit(matrix, labels, 2, [0.5], solver)) for solver in ("rotate", "direct", "sklearn")]
    for other in result[1:]:
        assert other.loss == pytest.approx(result[0].loss, rel=1e-6)
        torch.testing.assert_close(other.weight, result[0].weight, rtol=1e-3, atol=1e-4)


@given(n=st.integers(2, 30), simplices=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_codes_equal_their_one_hot_matrix(n, simplices, seed):
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randint(VERTICES, (n, simplices), generator=g)
    matrix = Codes(drawn, VERTICES)
    x = torch.nn.functional.one_hot(drawn, VERTICES).flatten(1).double()
    weight, errors = torch.randn(x.shape[1], 3, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)
    torch.testing.assert_close(matrix.times(weight), x @ weight)
    torch.testing.assert_close(matrix.transposed_times(errors), x.T @ errors)
    assert matrix.inner(Codes(drawn[:1], VERTICES)).equal(x @ x[:1].T)
    assert matrix.squares().equal(x.square().sum(0))
    assert (matrix.sparse().toarray() == x.numpy()).all()


def test_products_in_pieces_equal_full_products(monkeypatch):
    errors = torch.randn(60, 3, dtype=torch.float64)
    matrix, _ = SETS["wide codes"]()
    weight = torch.randn(matrix.shape[1], 3, dtype=torch.float64)
    expected = matrix.times(weight), matrix.transposed_times(errors)
    monkeypatch.setattr(logistic, "PIECE", 60 * 7)  # seven simplices, ten samples
    pieces, _ = SETS["wide codes"]()
    torch.testing.assert_close((pieces.times(weight), pieces.transposed_times(errors)), expected)
    assert len(pieces._rows) == 6


@pytest.mark.parametrize("name", ["wide codes", "wide dense", "long dense"])
def test_rotation_keeps_distances_and_inverts(name):
    matrix, labels = SETS[name]()
    turned = Rotated(matrix)
    x = torch.as_tensor(matrix.sparse().toarray() if "codes" in name else matrix.sparse())
    x = x - x.mean(0)
    torch.testing.assert_close(turned.train.features @ turned.train.features.T, x @ x.T)
    torch.testing.assert_close(turned.rotate(matrix).features, turned.train.features, rtol=1e-6, atol=1e-8)
    result = next(solve(turned.train, labels, CLASSES, [1.0]))
    there = turned.train.times(result.weight) + result.bias
    back = turned.back(result)
    torch.testing.assert_close(matrix.times(back.weight) + back.bias, there)
    assert back.weight.norm() == pytest.approx(result.weight.norm().item())


@pytest.mark.parametrize("solver", ["rotate", "direct", "sklearn"])
def test_predictions_along_the_path_are_those_of_the_fits(solver):
    matrix, labels = codes(80, 30, share=0.25)
    other, _ = codes(60, 30, seed=5, share=0.25)
    path = [10.0, 0.1]
    rows = predict_along(matrix, labels, CLASSES, path, solver, other)
    for (guesses, converged), result in zip(rows, fit(matrix, labels, CLASSES, path, solver), strict=True):
        assert converged and guesses.equal((other.times(result.weight) + result.bias).argmax(1))


def test_data_that_cannot_be_fitted_raises():
    matrix, labels = dense(20, 4)
    with pytest.raises(UserError, match="did you mean 'rotate'"):
        choose_solver(matrix, labels, CLASSES, "rotat")
    with pytest.raises(UserError, match="1 of 6 classes have no sample"):
        choose_solver(matrix, labels, 6)
    matrix.features[3, 1] = torch.nan
    with pytest.raises(UserError, match="features of 1 of 20 samples are not finite"):
        choose_solver(matrix, labels, CLASSES)


def test_auto_rotates_matrices_with_a_short_side():
    assert choose_solver(*codes(60, 40), CLASSES) == "rotate"
    assert choose_solver(*codes(9000, 2), CLASSES) == "direct"
    assert choose_solver(*dense(9000, 4), CLASSES) == "rotate"
