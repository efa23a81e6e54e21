"""The steps shared by verbs that measure a run: parse and load, then tabulate and write."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simplicia.cli.options import Parser
from simplicia.cli.tables import table

if TYPE_CHECKING:
    from simplicia.run import Run


def start(parser: Parser, arguments: list[str], defaults: Any = None) -> "tuple[Namespace, Any, Run]":
    """The arguments, the settings with their changes, and the run; settings are checked before it loads."""
    from simplicia.run import load
    from simplicia.settings import with_changes

    settings = defaults
    if defaults is not None:
        parser.add("--quiet")
        parser.add_settings(defaults)
    args = parser.parse(arguments)
    if defaults is not None:
        settings = with_changes(defaults, parser.changes(args))
        settings.validate()
    return args, settings, load(args.run, args.device)


def finish(
    run: "Run",
    protocol: str,
    result: Any,
    args: Namespace,
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Print the table of a result, write the result, and print where."""
    from simplicia.evaluate.make_result import result_name

    table(title, columns, rows)
    print(f"written to {run.write_result(result_name(run, protocol, result), result, args.json)}")


def images(result: Any) -> str:
    """The test images of a result, in words."""
    return f"{result['test_images']:,} test images of {result['dataset']}, {result['classes']} classes"
