"""`ferry datasets`: which datasets are known by name, and what one of them holds."""

import argparse
import json

_EXAMPLES = """examples:
  ferry datasets                         names, what they are, rows, licence, and whether they are here
  ferry datasets show adult              one card: columns, where it comes from, and its first rows if it is here
  ferry datasets show ./sales.csv        the same for a file or folder of yours
  ferry datasets show adult --croissant  its description for search engines and other libraries (JSON-LD)
  ferry datasets --json                  the list for programs
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "datasets",
        help="list datasets that load by name",
        description="List the datasets that load by name, or show one of them, or files of yours.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("list", "show"), default="list", help="list all (default), or show one")
    parser.add_argument("name", nargs="?", metavar="DATASET", help="the dataset to show: a name, or the path of a file or folder")
    parser.add_argument("--folder", metavar="DIR", help="where the files of a dataset are that no package carries")
    parser.add_argument("--croissant", action="store_true", help="print its Croissant description")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tensorferry import BadOption
    from tensorferry.datasets.catalog import find_card, list_cards
    from tensorferry.datasets.croissant import describe_croissant
    from tensorferry.datasets.show import is_here, render_cards, render_dataset

    if (options.what == "show") != (options.name is not None):
        raise BadOption("write `ferry datasets show DATASET` for one of them, `ferry datasets` for all")
    if options.what == "list":
        cards = list_cards()
        rows = [{**asdict(card), "here": is_here(card)} for card in cards]
        print(json.dumps(rows, indent=1) if options.json else render_cards(cards))
    elif options.croissant:
        print(json.dumps(describe_croissant(find_card(options.name)), indent=1))
    elif options.json:
        print(json.dumps(asdict(find_card(options.name)), indent=1))
    else:
        print(render_dataset(options.name, options.folder))
    return 0
