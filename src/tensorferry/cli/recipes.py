"""`ferry recipes`: the catalog, and the card of each recipe."""

import argparse
import json

_EXAMPLES = """examples:
  ferry recipes                       the catalog: task, framework, data, size, where you can start
  ferry recipes show bert-classify    one card: data and licence, settings, figures, commands to copy
  ferry recipes --json                the same for programs
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "recipes",
        help="list ready-made recipes: models with data to train them on",
        description="List the recipes, or show one of them: its data, settings, figures and commands.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("list", "show"), default="list", help="list all (default), or show one")
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="the recipe to show")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tensorferry import BadOption
    from tensorferry.recipes.card_text import render_card, render_cards
    from tensorferry.recipes.catalog import find_card, list_cards

    if (options.what == "show") != (options.name is not None):
        raise BadOption("write `ferry recipes show RECIPE` for one card, `ferry recipes` for all of them")
    if options.what == "show":
        card = find_card(options.name)
        print(json.dumps(asdict(card), indent=1) if options.json else render_card(card))
    else:
        cards = list_cards()
        print(json.dumps([asdict(card) for card in cards], indent=1) if options.json else render_cards(cards))
    return 0
