"""`ferry report`: a run on one page."""

import argparse
from pathlib import Path

_EXAMPLES = """examples:
  ferry report runs/brain                       writes runs/brain/report.html
  ferry report runs/brain --out brain.html
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "report",
        help="draw a run on one page: curves, memory, timeline, metrics",
        description="Draw a run, finished or not, on one HTML page that opens offline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run of `ferry train` or `ferry fit`")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the page (default: report.html in the folder)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.fitting.folder import is_fitted
    from tensorferry.train.folder import Run
    from tensorferry.train.page import draw_run

    if is_fitted(options.folder):
        from tensorferry.fitting.run import draw_fit

        print(draw_fit(options.folder, options.out))
        return 0
    print(draw_run(Run(options.folder), options.out))
    return 0
