"""A run as a transformer in scikit-learn pipelines."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import simplicia
from simplicia import RunTransformer, UserError
from simplicia.data import datasets
from simplicia.evaluate.features import encoder_features


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    small = {"epochs": 1, "batch_size": 500, "encoder": "tiny", "sem.simplices": 8, "image_size": 16}
    return simplicia.pretrain("byol-sem", data="shapes", out=folder, quiet=True, **small)


@pytest.fixture(scope="module")
def images():
    shapes = datasets.load("shapes", "test")
    kept = shapes.labels < 3
    return shapes.images[kept][:90].numpy(), shapes.labels[kept][:90].numpy()


def test_transform_matches_run_encode(run, images):
    for layer, temperature in ((None, None), ("sem", 0.1), ("encoder", None), ("embedder", None)):
        step = RunTransformer(run.path, layer, temperature).fit()
        features = step.transform(images[0][:5])
        np.testing.assert_array_equal(features, run.encode(images[0][:5], layer, temperature).numpy())
        assert features.shape[1] == len(step.get_feature_names_out())
    sem = RunTransformer(run.path).fit()
    assert sem.get_feature_names_out()[14] == "simplex1_vertex1"  # of 13 vertices


def test_codes_are_a_sparse_matrix_of_ones(run, images):
    matrix = RunTransformer(str(run.path), "codes").fit_transform(images[0][:7])
    codes = run.encode(images[0][:7], "codes")
    assert matrix.shape == (7, 8 * 13) and matrix.nnz == 7 * 8
    one_hot = torch.nn.functional.one_hot(codes.long(), 13).flatten(1).numpy()
    np.testing.assert_array_equal(matrix.toarray(), one_hot)


def test_explain_names_certain_simplices_and_images_that_share_them(run, images, tmp_path):
    image = images[0][3]
    votes = run.explain(image, count=3, examples=2)
    p = run.encode(image, "sem").view(8, 13)
    assert [vote.simplex for vote in votes] == p.amax(1).topk(3).indices.tolist()
    assert [vote.vertex for vote in votes] == [p[vote.simplex].argmax().item() for vote in votes]
    assert votes[0].probability == p.max().item()
    train = datasets.load("shapes").images
    shares = run.encode(train[[*votes[0].examples, 0]], "sem").view(3, 8, 13)[
        :, votes[0].simplex, votes[0].vertex
    ]
    assert shares[0] >= shares[1] >= shares[2] or 0 in votes[0].examples
    files = [tmp_path / f"{i}.png" for i in range(5)]
    for path, pixels in zip(files, images[0], strict=False):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(path)
    (vote,) = RunTransformer(run).fit().explain(files[0], count=1, examples=9, images=files)
    shares = run.encode(files, "sem").view(5, 8, 13)[:, vote.simplex, vote.vertex]
    assert vote.examples == [files[i] for i in shares.argsort(descending=True)]
    (vote,) = RunTransformer(run, network="target").fit().explain(files[0], count=1, images=files)
    assert vote.probability == run.encode(files[0], "sem", network="target").max().item() != p.max().item()
    with pytest.raises(UserError, match="takes one"):
        run.explain(images[0][:2])


def test_inputs_may_be_an_array_of_paths(run, images, tmp_path):
    files = [tmp_path / f"{i}.png" for i in range(12)]
    for path, image in zip(files, images[0], strict=False):
        Image.fromarray(image.transpose(1, 2, 0)).save(path)
    expected = run.encode(files)
    for paths in (np.array([str(f) for f in files]), np.array(files, dtype=object)):
        assert run.encode(paths).equal(expected)
    pipeline = make_pipeline(RunTransformer(run.path), LogisticRegression())
    GridSearchCV(pipeline, {}, cv=2, error_score="raise").fit(paths, np.arange(12) % 2)


def test_a_pickled_run_contains_no_cached_features(run, images):
    before = len(pickle.dumps(run))
    encoder_features(run, torch.as_tensor(images[0]))
    data = pickle.dumps(run)
    assert len(data) == before and len(run.features) == 1
    assert pickle.loads(data).encode(images[0][:3]).equal(run.encode(images[0][:3]))


def test_transformer_works_in_a_pipeline_and_a_grid_search(run, images):
    pipeline = make_pipeline(RunTransformer(run.path), LogisticRegression(max_iter=500))
    temperatures = np.array([0.1, 1.0], dtype=np.float32)
    grid = {"runtransformer__temperature": temperatures, "runtransformer__layer": ["sem"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(*images)
    assert len(search.cv_results_["params"]) == 2
    assert search.score(*images) > 1 / 2
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(images[0][:9]), search.predict(images[0][:9]))


def test_arrays_may_have_negative_strides_and_loading_keeps_the_random_state(run, images):
    turned = images[0][:4, ::-1]  # negative strides, as after BGR to RGB
    assert torch.equal(run.encode(turned), run.encode(turned.copy()))
    assert torch.equal(run.encode(list(turned)), run.encode(turned.copy()))
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    simplicia.load(run.path)
    assert torch.equal(torch.rand(1), expected)


def test_parameters_can_be_cloned_and_invalid_input_raises(run, images, tmp_path):
    step = RunTransformer(run.path, "sem", 0.5)
    assert clone(step).get_params() == step.get_params()
    with pytest.raises(NotFittedError):
        step.transform(images[0])
    with pytest.raises(UserError, match="is not a run"):
        RunTransformer(tmp_path).fit()
    with pytest.raises(UserError, match="layer"):
        RunTransformer(run, "semm").fit()
    np.testing.assert_array_equal(
        RunTransformer(run).fit_transform(images[0][:2]), run.encode(images[0][:2]).numpy()
    )
