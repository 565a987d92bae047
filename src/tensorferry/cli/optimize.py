"""`ferry optimize`: a trained model as the fastest engine that gives its answers, where the server finds it."""

import argparse
import json
import sys
from pathlib import Path

from tensorferry.cli.numbers import seconds

_EXAMPLES = """examples:
  ferry optimize runs/brain --to models/                       a run of ours, compared on its held-out samples
  ferry optimize net.onnx --name detector --to models/ --samples images.npz
  ferry optimize runs/reviews --to models/ --int8 --calibrate reviews.csv --min-agreement 0.99
  ferry optimize net.py:build --weights net.safetensors --samples images.npy --to models/ --html report.html

models: .onnx, .xml (OpenVINO), .keras, .pt2, TorchScript with --trust, a SavedModel folder, a run, or a function of your own that
returns a torch module or a Keras model. Then: ferry serve models/
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "optimize",
        help="turn a trained model into the fastest engine that gives its answers",
        description="Build every engine that this hardware can run the model in, compare each with the original on real samples, "
        "measure those that give the same answers, and save the fastest where a server finds it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a file, a folder, a run, or package.module:function")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="the model repository to save to; without it nothing is saved")
    parser.add_argument("--name", metavar="NAME", help="of the model there (default: the file's or the run's)")
    _add_samples(parser)
    _add_choice(parser)
    parser.add_argument(
        "--trust", action="store_true", help="load files that may run code or reach other files, such as TorchScript"
    )
    parser.add_argument("--no-pipeline", action="store_true", help="clients send arrays, also where images or texts would do")
    parser.add_argument("--json", action="store_true", help="write what was found as JSON to stdout instead of the table")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with every candidate")
    parser.set_defaults(run=_run)


def _add_samples(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("samples")
    group.add_argument("--samples", type=Path, metavar="FILE", help="real inputs, .npz by name or .npy (default: a run's own)")
    group.add_argument("--calibrate", type=Path, metavar="FILE", help="for int8: other inputs, or data that a run's recipe reads")
    group.add_argument("--labels", type=Path, metavar="FILE", help="what the classes are called, a line each")
    group.add_argument("--weights", type=Path, metavar="FILE", help="of a function's model: .safetensors, .pt or .weights.h5")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("choice")
    group.add_argument("--precision", default="auto", metavar="NAME", help="auto, fp32, bf16 or int8 (default %(default)s)")
    group.add_argument("--int8", action="store_true", help="also try int8, as --precision int8")
    group.add_argument(
        "--min-agreement", type=float, default=0.99, metavar="SHARE", help="of samples with the same answer (default %(default)s)"
    )
    group.add_argument("--judge", default="auto", metavar="NAME", help="what the same answer is: top1, nearest or close")
    group.add_argument("--seconds", type=seconds, default=120.0, metavar="S", help="to build and measure (default %(default)g)")


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
