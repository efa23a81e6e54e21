"""Sphinx: ``make docs`` builds the site. Pages on the command line and the settings are made from code."""

import importlib
import os
import shutil
from pathlib import Path

from simplicia import bottlenecks, methods
from simplicia.cli.main import MODULES, TASKS
from simplicia.cli.verbs import VERBS
from simplicia.settings import walk
from simplicia.train.recipe import Recipe
from simplicia.version import __version__

project, author, release = "Simplicia", "Simplicia contributors", __version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed with their outputs
exclude_patterns = ["reference/README.md"]
html_theme, html_title, html_show_sourcelink = "furo", f"Simplicia {__version__}", False
html_show_copyright = False
html_copy_source = False
html_static_path, html_css_files = ["_static"], ["site.css"]
autodoc_member_order, autodoc_typehints = "bysource", "signature"
autodoc_preserve_defaults = True
GENERATED = Path(__file__).parent / "reference"


def write_reference(app: object) -> None:
    """Write the pages of the reference that the code determines."""
    os.environ["COLUMNS"] = "96"  # of argparse's help
    for module in MODULES.split():
        importlib.import_module(f"simplicia.cli.{module}")
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / "cli.md").write_text(command_line())
    (GENERATED / "settings.md").write_text(settings())


def command_line() -> str:
    """Every verb with its help page; settings have a page of their own."""
    parts = ["# Command line\n\nOptions that are settings of a recipe are in [Settings](settings.md).\n"]
    for task, verbs in TASKS.items():
        parts.append(f"## {task}\n")
        for name in verbs.split():
            parser, _, defaults = VERBS[name].parser([])
            help_ = parser.format_help(everything=not isinstance(defaults, Recipe)).rstrip()
            parts.append(f"### {name}\n\n```text\n{help_}\n```\n")
    return "\n".join(parts)


def settings() -> str:
    """Tables of the settings of recipes, methods and bottlenecks."""
    parts = [
        "# Settings\n\nA setting has one name in Python (`sem.vertices`), on the command line "
        "(`--sem.vertices`) and in `recipe.yaml`. `simplicia recipes NAME` prints the values of a recipe.\n"
    ]
    fields = [(path, option) for path, option, value in walk(Recipe()) if not isinstance(value, dict)]
    sections = dict.fromkeys(path.rpartition(".")[0] for path, _ in fields)
    for section in sections:
        of_section = [(path, option) for path, option in fields if path.rpartition(".")[0] == section]
        parts += [f"## {section or 'Recipe'}\n", table(of_section)]
    for method in methods.names():
        of_method = [(f"{method}.{name}", option) for name, option in methods.options(method).items()]
        parts += [f"## {method}\n", table(of_method)]
    parts.append("## Bottlenecks\n\n| bottleneck | its options |\n|---|---|")
    for kind in bottlenecks.names():
        parts.append(f"| `{kind}` | {', '.join(f'`{name}`' for name in bottlenecks.options(kind)) or '-'} |")
    return "\n".join(parts) + "\n"


def table(fields: list) -> str:
    """A Markdown table of settings."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for path, option in fields:
        kind = str(option.type).replace("typing.", "") if option.range is None else str(option.range)
        kind = getattr(option.type, "__name__", kind) if option.range is None else kind
        cells = (f"`{path}`", f"`{option.default!r}`", kind, option.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def copy_gallery(app, error: Exception | None) -> None:
    """The gallery's pages are complete as they are."""
    if error is None:
        shutil.copytree(Path(__file__).parent / "gallery", Path(app.outdir) / "gallery", dirs_exist_ok=True)


def setup(app) -> None:
    app.connect("builder-inited", write_reference)
    app.connect("build-finished", copy_gallery)
