"""`ferry optimize`: a trained model as the fastest engine that gives its answers, where the server finds it."""

import argparse
import json
import sys
from pathlib import Path

from tensorferry.cli.numbers import seconds

_EXAMPLES = """examples:
  ferry optimize runs/brain --to models/                       a run, compared on its held-out samples
  ferry optimize net.onnx --name detector --to models/ --samples images.npz
  ferry optimize runs/reviews --to models/ --int8 --calibrate reviews.csv --min-agreement 0.99
  ferry optimize net.py:build --weights net.safetensors --samples images.npy --to models/ --html report.html

models: .onnx, .xml (OpenVINO), .keras, .pt2, TorchScript with --trust, a SavedModel folder, a run, or a function of your own that
returns a torch module or a Keras model. Serve the result with: ferry serve models/
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "optimize",
        help="turn a trained model into the fastest engine that gives the same answers",
        description="Build every engine that this hardware can run, compare its answers with the original's on real samples,\n"
        "time those that agree, and save the fastest for `ferry serve`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a file, a folder, a run, or package.module:function")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="the model repository to save to (default: save nothing, only report)"
    )
    parser.add_argument("--name", metavar="NAME", help="what to call the model there (default: the name of the file or run)")
    _add_samples(parser)
    _add_choice(parser)
    parser.add_argument(
        "--trust", action="store_true", help="also load files that may run code or reach other files, such as TorchScript"
    )
    parser.add_argument(
        "--no-pipeline", action="store_true", help="save only the engine: clients send arrays instead of images or texts"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with every candidate")
    parser.set_defaults(run=_run)


def _add_samples(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("samples")
    group.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="real inputs to compare on: .npz, or .npy for one input (default: a run's held-out samples)",
    )
    group.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="inputs to calibrate int8 on: .npz or .npy; for a run, data that its recipe reads",
    )
    group.add_argument(
        "--targets",
        type=Path,
        metavar="FILE",
        help="the right answers to --samples: class numbers, .npy (default: a run's own, if it has classes)",
    )
    group.add_argument("--labels", type=Path, metavar="FILE", help="class names, one per line")
    group.add_argument(
        "--weights", type=Path, metavar="FILE", help="weights for the model a function returns: .safetensors, .pt or .weights.h5"
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("choice")
    group.add_argument(
        "--precision",
        default="auto",
        metavar="NAME",
        help="auto, fp32, bf16, int8, int4, or several (fp32,int8) (default %(default)s)",
    )
    group.add_argument("--int8", action="store_true", help="also try int8")
    group.add_argument(
        "--min-agreement",
        type=float,
        metavar="SHARE",
        help="share of samples that must have the same answer (default 0.99)",
    )
    group.add_argument(
        "--max-drop",
        type=float,
        metavar="SHARE",
        help="where the right answers are known: accuracy or Dice that may be lost (default 0.005 or 0.002)",
    )
    group.add_argument(
        "--judge",
        default="auto",
        metavar="NAME",
        help="what counts as the same answer: top1, nearest or close (default: top1 or close)",
    )
    group.add_argument(
        "--seconds", type=seconds, default=120.0, metavar="S", help="time to build and measure (default %(default)g)"
    )


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tensorferry.optimization.command import CommandOptions, run_command

    console = Console(file=sys.stderr, highlight=False)  # this very one: progress goes on while exporters are kept quiet
    asked = CommandOptions(
        model=options.model,
        to=options.to,
        name=options.name,
        samples=options.samples,
        calibrate=options.calibrate,
        labels=options.labels,
        weights=options.weights,
        precision=options.precision,
        int8=options.int8,
        min_agreement=options.min_agreement,
        targets=options.targets,
        max_drop=options.max_drop,
        judge=options.judge,
        seconds=options.seconds,
        trust=options.trust,
        pipeline=not options.no_pipeline,
        html=options.html,
    )
    result = run_command(asked, console)
    if options.json:
        print(json.dumps(result.report.to_json() | {"saved": str(result.folder or "")}, indent=1))
    elif sys.stdout.isatty():
        Console(highlight=False).print(result.report)  # as wide as the terminal is
    else:
        print(result.report)
    if result.folder is not None:
        console.print(f"saved: {result.folder}", markup=False, soft_wrap=True)
    return 0
