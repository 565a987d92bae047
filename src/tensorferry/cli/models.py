"""`ferry models`: what a model repository holds, whether it is sound, and old versions out of it."""

import argparse
from pathlib import Path

from tensorferry.cli.numbers import positive

_EXAMPLES = """examples:
  ferry models models/              every version: format, size, precision, where it came from
  ferry models models/ --check      load each, and compare its files with its card; exit code 1 where one is wrong
  ferry models models/ --prune 2    keep the two newest versions of each model; asks first
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "models",
        help="list, check and prune a folder of models",
        description="List the models of a repository, check that they load and are as their cards say, or remove old versions.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", type=Path, metavar="FOLDER", help="a model repository: one folder per model")
    parser.add_argument("--check", action="store_true", help="load every version and compare it with its card's checksums")
    parser.add_argument("--trust", action="store_true", help="with --check: also load files that may run code")
    parser.add_argument(
        "--prune",
        type=positive,
        metavar="N",
        help="remove all but the newest N versions of each model; versions that are served or named by an ensemble stay",
    )
    parser.add_argument("--yes", action="store_true", help="with --prune: do not ask")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.serve.options import InventoryOptions
    from tensorferry.serve.start import take_inventory

    return take_inventory(
        InventoryOptions(
            repository=options.repository,
            check=options.check,
            trust=options.trust,
            num_kept=options.prune,
            asks=not options.yes,
            as_json=options.json,
        )
    )
