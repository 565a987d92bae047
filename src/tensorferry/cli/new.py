"""`ferry new`: a small project to begin with."""

import argparse
from pathlib import Path

_EXAMPLES = """examples:
  ferry new my-project      a table of penguins, a model, a test, a client and a README
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "new",
        help="begin a project: data, model, test and README that work as they are",
        description="Write a small project that trains, optimises and serves in four commands.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it: a folder that is not there yet")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.fitting.new_project import write_project

    names = write_project(options.folder)
    print(f"{options.folder}: {', '.join(names)}. Begin with {options.folder / 'README.md'}")
    return 0
