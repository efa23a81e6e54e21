import subprocess
import sys


def test_importing_simplicia_brings_no_heavy_library():
    code = (
        "import sys, simplicia; "
        "heavy = {'torchvision', 'timm', 'lightning_fabric', 'sklearn', 'matplotlib', 'networkx', 'PIL', 'scipy', 'rich'}; "
        "import torch; print(sorted(heavy & set(sys.modules)))"
    )
    bare = "import sys, torch; print(sorted({'PIL', 'scipy', 'rich', 'networkx', 'sklearn'} & set(sys.modules)))"
    with_us, without = (
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout for c in (code, bare)
    )
    assert with_us == without
