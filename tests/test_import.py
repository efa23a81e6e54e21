import subprocess
import sys


def test_the_command_line_is_there_before_torch_is():
    """So that Ctrl-C is answered in a line from the start."""
    code = "import sys, simplicia.cli; print('torch' in sys.modules, simplicia.simplicial.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "simplicia.sem"]


def test_importing_simplicia_brings_no_heavy_library():
    heavy = [
        "torchvision",
        "timm",
        "lightning_fabric",
        "sklearn",
        "matplotlib",
        "networkx",
        "PIL",
        "scipy",
        "rich",
    ]
    seen = []
    for module in ("torch", "torch, simplicia"):
        code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seen.append(done.stdout)
    assert seen[0] == seen[1]
