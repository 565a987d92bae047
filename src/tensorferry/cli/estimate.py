"""`ferry estimate`: will this model train on that machine, and what does it cost?"""

import argparse
import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

_EXAMPLES = """examples:
  ferry estimate resnet50 --batch 512 --on v100-16gb-nvlink2
  ferry estimate unet3d --input 1x1x192x192x192 --on v100-16gb-pcie3 --on a100-40gb --on rtx4090
  ferry estimate mypackage.net:build --input 8x3x512x512 --optimizer adam --precision bf16 --on h100-80gb --max batch
  ferry estimate resnet50 --on v100-16gb-nvlink2 --max batch --html plan.html --json
  ferry estimate bert-large --on file.yaml --set link_out=25GB/s --set link_in=25GB/s

models: resnet50, resnet152, googlenet, unet3d, bert-base, bert-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b,
gpt3-13b, or your own function that returns an nn.Module or a Keras model. machines: see `ferry machines`.
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "estimate",
        help="will it fit? predict memory and time of a training step on any machine",
        description="Predict a training step on machines you do not have: memory, seconds, what is kept, swapped, recomputed,\n"
        'and how far batch or resolution can go. Nothing runs and nothing is allocated, except on "this", your own\n'
        "computer, where single ops are timed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in name, package.module:function or file.py:function")
    parser.add_argument(
        "--on",
        action="append",
        required=True,
        metavar="MACHINE",
        help='a name from `ferry machines`, file.yaml, or "this"; repeatable',
    )
    parser.add_argument("--batch", type=int, metavar="N", help="samples per step (default: the model's)")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="shape of an input, such as 8x3x512x512 or 8x128:int64; once per input",
    )
    parser.add_argument("--optimizer", metavar="NAME", help="sgd (with momentum), adam, adamw or rmsprop")
    parser.add_argument("--loss", metavar="NAME", help="cross_entropy, token_cross_entropy (classes last), mse or mean")
    parser.add_argument("--precision", default="fp32", metavar="NAME", help="fp32, tf32, fp16 or bf16 (default %(default)s)")
    parser.add_argument("--max", dest="largest", metavar="AXIS", help="also find the largest batch or resolution")
    parser.add_argument(
        "--policy",
        default="ferry",
        metavar="NAME",
        help="ferry, or swap-all: swap everything, as TFLMS did (default %(default)s)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the machines, such as link_out=25GB/s; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with the timelines")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.estimation import estimate

    with _rare_collections(), contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no part of the answer
        found = estimate(
            options.model,
            options.on,
            batch=options.batch,
            inputs=options.input,
            loss=options.loss,
            optimizer=options.optimizer,
            precision=options.precision,
            largest=options.largest,
            policy=options.policy,
            changes=dict(_pair(text) for text in options.set),
        )
    if options.html is not None:
        found.save(options.html)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """While inside, Python looks for cycles less often: loading a framework makes many objects that stay."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _pair(text: str) -> tuple[str, str]:
    from tensorferry import BadMachine

    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise BadMachine(f"cannot read {text!r}; write --set key=value, as in --set link_out=25GB/s")
    return key.strip(), value.strip()
