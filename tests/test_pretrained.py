"""Saved models give the run's codes in another process, load in timm, and are read without trust."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import simplicia
from simplicia import UserError, cli
from simplicia.data import datasets
from simplicia.evaluate.encode import encode
from simplicia.evaluate.knn import knn
from simplicia.evaluate.make_result import result_name
from simplicia.pretrained import NEEDED
from simplicia.run import Run
from simplicia.settings import with_changes
from simplicia.train import recipes

IMAGES = datasets.load("shapes", "test").images[:6]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    small = {"epochs": 1, "batch_size": 500, "image_size": 16, "encoder": "tiny"}
    small |= {"sem.simplices": 8, "options.hidden": 32}
    out = tmp_path_factory.mktemp("runs") / "a"
    return simplicia.pretrain("shapes-byol-sem", out=out, quiet=True, device="cpu", **small)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    test = datasets.load("shapes", "test")
    result = knn(run, datasets.part(test, torch.arange(900)), datasets.part(test, torch.arange(900, 1000)))
    run.write_result(result_name(run, "knn", result), result)
    return run.save_pretrained(tmp_path_factory.mktemp("models") / "model")


def built(encoder, tmp_path, **changes):
    """A run with initial weights, but BatchNorm statistics of a few batches."""
    torch.manual_seed(0)
    small = {"data": "shapes", "sem.simplices": 4, "options.hidden": 16, "image_size": 64}
    recipe = with_changes(recipes.get("byol-sem"), {**small, "encoder": encoder, **changes})
    method = recipe.build().train()
    method([torch.randn(4, 3, 64, 64) for _ in "ab"])
    state = {"step": 1, "total_steps": 9, "seconds": 1.0, "loss": 1.0}
    state |= {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "classes": ["a", "b"]}
    return Run(tmp_path / "run", recipe, method, state)


def test_codes_are_equal_in_a_new_process(run, saved, tmp_path):
    np.save(tmp_path / "images.npy", IMAGES.numpy())
    code = (
        "import sys, numpy as np, simplicia; model = simplicia.from_pretrained(sys.argv[1], device='cpu');"
        "images = np.load(sys.argv[2]); np.save(sys.argv[3], model.encode(images, 'codes').numpy())"
    )
    files = [str(saved), str(tmp_path / "images.npy"), str(tmp_path / "codes.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    assert np.array_equal(np.load(files[2]), run.encode(IMAGES, "codes").numpy())


def test_a_saved_model_is_a_run_without_projector(run, saved):
    model = simplicia.from_pretrained(saved, "cpu")
    for layer in run.layers():
        assert torch.equal(model.encode(IMAGES, layer), run.encode(IMAGES, layer))
    assert (model.step, model.state["classes"]) == (run.step, run.state["classes"])
    assert model.recipe.sem == run.recipe.sem and repr(simplicia.load(saved)) == repr(model)
    tensors = [key for name in NEEDED if name.endswith("tensors") for key in load_file(saved / name)]
    assert tensors and not any("projector" in key or "predictor" in key for key in tensors)
    with pytest.raises(UserError, match="no target network"):
        model.network("target")


def test_every_verb_takes_a_saved_model(saved, tmp_path):
    model = shutil.copytree(saved, tmp_path / "model")
    assert (
        cli.main(["encode", str(model), "shapes", "--layer", "codes", "--out", str(tmp_path / "a.npz")]) == 0
    )
    assert cli.main(["knn", str(model), "--json", str(tmp_path / "knn.json")]) == 0
    assert np.load(tmp_path / "a.npz")["codes"].shape[1] == 8


def test_the_card_has_results_and_how_to_load_but_no_folders(run, saved, tmp_path):
    card = (saved / "README.md").read_text()
    assert "| weighted kNN | sem | 1 | shapes |" in card and "simplicia.from_pretrained" in card
    assert "timm has no counterpart of this encoder (tiny" in card and not (saved / "config.json").exists()
    hostile = "<script>|`x`\x1b[31m"
    recipe = with_changes(run.recipe, {"name": hostile, "data": "/home/me/pictures", "data_dir": "/home/me"})
    other = Run(tmp_path, recipe, run.method, run.state).save_pretrained(tmp_path / "b")
    card = (other / "README.md").read_text()
    assert "\\<script\\>" in card and "\x1b" not in card
    assert not any("/home/me" in path.read_text(errors="replace") for path in other.iterdir())


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet10t", "vit_tiny_patch16_224"])
def test_timm_loads_the_encoder(name, tmp_path):
    import timm

    run = built(name, tmp_path, stem="imagenet", **{"sem.norm": "layer"})
    folder = run.save_pretrained(tmp_path / "model")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(run.view(IMAGES)), run.encode(IMAGES, "encoder"))
    assert theirs.pretrained_cfg["mean"] == [0.5, 0.4, 0.3] and theirs.num_classes == 0
    head = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=10).eval()
    with torch.no_grad():
        assert head(run.view(IMAGES)).shape == (6, 10)
    again = simplicia.from_pretrained(folder, "cpu")
    assert torch.equal(again.encode(IMAGES, "codes"), run.encode(IMAGES, "codes"))


def test_tokens_are_the_codes_of_patches(run, tmp_path):
    vit = built("vit_tiny_patch16_224", tmp_path)
    codes = vit.encode(IMAGES, "tokens")
    assert codes.shape == (6, 16, 4)  # 64 pixels are 4 x 4 patches
    net = vit.network()
    with torch.no_grad():
        tokens = net.encoder.model.forward_features(vit.view(IMAGES))[:, 1:]
        assert torch.equal(codes[:, 5], net.bottleneck.codes(tokens[:, 5]))
    with pytest.raises(UserError, match="ResNet has no tokens"):
        run.encode(IMAGES, "tokens")
    with pytest.raises(UserError, match="no layer 'codes'"):
        built("vit_tiny_patch16_224", tmp_path, bottleneck="none").encode(IMAGES, "tokens")


def test_tokens_are_written_by_encode(tmp_path):
    vit, images = built("vit_tiny_patch16_224", tmp_path), tmp_path / "photos"
    images.mkdir()
    for i, pixels in enumerate(IMAGES):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((64, 64)).save(images / f"{i}.png")
    files = [images / f"{i}.png" for i in range(len(IMAGES))]
    wanted = vit.encode(files, "tokens").numpy()
    for name in ("a.npz", "a.parquet"):
        encode(vit, str(images), tmp_path / name, ["tokens"], None, "online", None, True)
    stored = np.load(tmp_path / "a.npz")["tokens"]
    assert stored.dtype == np.uint8 and np.array_equal(stored, wanted)
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet")["tokens"].to_pylist()
    assert np.array_equal(np.array(rows), wanted)
    with pytest.raises(UserError, match=r"give \.npz or \.parquet"):
        encode(vit, str(images), tmp_path / "a.csv", ["tokens"], None, "online", None, True)


def test_an_encoder_from_python_stays_here(run, tmp_path):
    recipe = with_changes(run.recipe, {"encoder": "given"})
    with pytest.raises(UserError, match="others cannot build"):
        Run(tmp_path, recipe, run.method, run.state).save_pretrained(tmp_path / "model")


def test_a_resnet_with_the_small_stem_says_that_timm_lacks_it(tmp_path):
    folder = built("resnet18", tmp_path, stem="small").save_pretrained(tmp_path / "model")
    assert not (folder / "config.json").exists()
    assert (
        "timm has no counterpart of this encoder (resnet18, stem small)" in (folder / "README.md").read_text()
    )


def test_names_on_the_hub_without_a_network(saved, tmp_path):
    """The cache of huggingface_hub is filled as a download fills it; everything else needs the network."""
    cache = tmp_path / "hub/models--someone--photos"
    shutil.copytree(saved, cache / "snapshots/abc")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("abc")
    code = f"""
import simplicia
print(simplicia.from_pretrained("someone/photos", "cpu").encode({str(saved)!r} and __import__("torch").zeros(
    1, 3, 32, 32), "codes").shape)
for call in (lambda: simplicia.from_pretrained("someone/other"),
             lambda: simplicia.from_pretrained({str(saved)!r}, "cpu").push_to_hub("someone/new"),
             lambda: simplicia.from_pretrained({str(saved)!r}, "cpu").push_to_hub("new")):
    try:
        call()
    except simplicia.UserError as error:
        print(error)
"""
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    process = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
    shape, fetch, push, name = process.stdout.splitlines()
    assert shape == "torch.Size([1, 8])"
    assert fetch.startswith("someone/other cannot be fetched from the hub (HF_HUB_OFFLINE is set): ")
    assert push.startswith("someone/new cannot be uploaded to the hub (HF_HUB_OFFLINE is set): ")
    assert name == "'new' is not a name on the hub; give user/name"


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks of the hub to create a repository, and to upload and fetch its files."""

    protocol_version, files, commit = "HTTP/1.1", {}, "a" * 40

    def log_message(self, *_):
        pass

    def answer(self, value, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(200)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"unreachable" in body:
            self.close_connection = True  # without an answer
            return
        address = f"http://{self.headers['Host']}/me/shapes"
        if "/preupload/" in self.path:
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": file["path"], **modes} for file in json.loads(body)["files"]]})
            return
        for line in body.splitlines() if "/commit/" in self.path else ():
            said = json.loads(line)
            if said["key"] == "file":
                self.files[said["value"]["path"]] = base64.b64decode(said["value"]["content"])
        self.answer(
            {"url": address, "commitUrl": f"{address}/commit/{self.commit}", "commitOid": self.commit}
        )

    def do_GET(self):
        if "/resolve/" in self.path:
            content = self.files[self.path.rpartition("/")[2]]
            about = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X_Repo_Commit": self.commit}
            self.answer(content, **about)
            return
        files = [{"type": "file", "path": n, "size": len(c), "oid": "b" * 40} for n, c in self.files.items()]
        self.answer(files if "/tree/" in self.path else {"id": "me/shapes", "sha": self.commit})

    do_HEAD = do_GET


def test_a_model_is_pushed_to_a_hub_and_fetched_from_it(run, saved, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    torch.save(run.encode(IMAGES, "codes"), tmp_path / "codes.pt")
    code = f"""
import torch, simplicia
model = simplicia.from_pretrained({str(saved)!r}, "cpu")
print(model.push_to_hub("me/shapes"))
images = simplicia.data.datasets.load("shapes", "test").images[:6]
codes = simplicia.from_pretrained("me/shapes", "cpu").encode(images, "codes")
print(torch.equal(codes, torch.load({str(tmp_path / "codes.pt")!r})))
try:
    model.push_to_hub("me/unreachable")
except simplicia.UserError as error:
    print(error)
"""
    endpoint = f"http://127.0.0.1:{server.server_port}"
    settings = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_a"}
    settings |= {"NO_PROXY": "127.0.0.1"}
    process = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
    server.shutdown()
    server.server_close()
    assert process.returncode == 0, process.stderr
    address, same, error = process.stdout.splitlines()
    assert (address, same) == (f"{endpoint}/me/shapes", "True")
    assert error.startswith("me/unreachable cannot be uploaded to the hub: ")
    assert {*NEEDED, "README.md"} == Hub.files.keys()


def _edit(path: Path, change):
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))


def _resave(path: Path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


HOSTILE = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "a pipe": (
        lambda f: (f / "recipe.yaml").unlink() or os.mkfifo(f / "recipe.yaml"),
        "it has no recipe.yaml",
    ),
    "a pickle": (
        lambda f: torch.save({}, f / "model.safetensors"),
        "cannot be read as safetensors",
    ),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-8]),
        "cannot be read as safetensors",
    ),
    "a missing tensor": (
        lambda f: _resave(f / "model.safetensors", lambda t: t.pop("conv1.weight")),
        "conv1.weight is absent",
    ),
    "an extra tensor": (
        lambda f: _resave(f / "bottleneck.safetensors", lambda t: t.update(x=torch.zeros(1))),
        "x is of shape .1., and should be absent",
    ),
    "another type": (
        lambda f: _resave(
            f / "bottleneck.safetensors", lambda t: t.update({k: v.half() for k, v in t.items()})
        ),
        "does not fit this model",
    ),
    "a huge model": (
        lambda f: (f / "recipe.yaml").write_text(
            (f / "recipe.yaml").read_text().replace("simplices: 8", "simplices: 2000000000")
        ),
        "does not fit its recipe|cannot be built",
    ),
    "an unknown encoder": (
        lambda f: (f / "recipe.yaml").write_text(
            (f / "recipe.yaml").read_text().replace("encoder: tiny", "encoder: hf-hub:someone/else")
        ),
        "unknown encoder",
    ),
    "no numbers": (lambda f: _edit(f / "simplicia.json", lambda s: s.update(std=[0, 0, 0])), "says std"),
    "no state": (lambda f: (f / "simplicia.json").write_text("[]"), "not an object"),
    "nested": (lambda f: (f / "simplicia.json").write_text("[" * 10**5), "cannot be read"),
    "classes": (lambda f: _edit(f / "simplicia.json", lambda s: s.update(classes=[1])), "list of names"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_folders_are_one_sentence(case, saved, tmp_path):
    change, words = HOSTILE[case]
    folder = shutil.copytree(saved, tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=words) as error:
        simplicia.from_pretrained(folder)
    assert "\n" not in str(error.value)


def test_saving_replaces_nothing_and_leaves_nothing_half_written(run, saved, tmp_path):
    with pytest.raises(UserError, match="is not empty"):
        run.save_pretrained(saved)
    with pytest.raises(UserError, match="is not a pretrained model"):
        simplicia.from_pretrained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the model cannot be written"):
        run.save_pretrained(tmp_path / "file/model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    code = "import sys, pathlib, simplicia.files as f; f.temporary_name(pathlib.Path(sys.argv[1])).mkdir()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)  # killed while it wrote
    assert len(list(tmp_path.iterdir())) == 2
    run.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]
