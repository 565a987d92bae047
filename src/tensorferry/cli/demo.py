"""`ferry demo`: plain training dies of a memory cap, the same training with a budget does not."""

import argparse
from pathlib import Path

from tensorferry.cli.numbers import positive
from tensorferry.demo.show import DemoSettings, show
from tensorferry.units import parse_bytes

_EXAMPLES = """examples:
  ferry demo                        takes under three minutes on two cores
  ferry demo --size 64 --steps 2    a smaller volume, quicker
  ferry demo --budget 650MiB        your own budget; the cap is set a little above it
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "demo",
        help="see it work: train a 3D U-Net under a memory cap that kills plain training",
        description="Train the recipe unet3d-brain three times, each in its own process: plain, plain under a hard memory cap,\n"
        "and under the same cap with a budget. Then compare the losses, bit for bit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DemoSettings.out,
        metavar="FOLDER",
        help="where to put the run and its report (default %(default)s)",
    )
    parser.add_argument(
        "--steps", type=positive, default=DemoSettings.num_steps, metavar="N", help="steps to train (default %(default)s)"
    )
    parser.add_argument(
        "--size",
        type=_edge,
        default=DemoSettings.edge,
        metavar="N",
        help="voxels along each edge of the volume (default %(default)s)",
    )
    parser.add_argument(
        "--budget", metavar="BYTES", help='memory budget, such as "650MiB" (default: 45 %% of what plain training takes)'
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    budget = None if options.budget is None else parse_bytes(options.budget)
    return show(DemoSettings(out=options.out, num_steps=options.steps, edge=options.size, budget_nbytes=budget))


def _edge(text: str) -> int:
    if not text.isdecimal() or int(text) < 16 or int(text) % 8:
        raise argparse.ArgumentTypeError(f"expected a multiple of 8, at least 16, received {text!r}")
    return int(text)
