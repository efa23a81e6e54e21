import subprocess
import sys

HEAVY = [
    *("torchvision", "timm", "lightning_fabric", "sklearn", "matplotlib", "networkx", "PIL", "scipy", "rich"),
    *("jinja2", "torch._dynamo"),
]


def output(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_command_line_starts_before_importing_torch():
    """So that Ctrl-C prints one line from the start."""
    code = "import sys, simplicia.cli; print('torch' in sys.modules, simplicia.simplicial.__module__)"
    assert output(code).split() == ["False", "simplicia.sem"]


def test_importing_simplicia_imports_no_heavy_library():
    show = f"import sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert output(f"import torch; {show}") == output(f"from simplicia import *; {show}")
