"""`ferry train`: a recipe becomes a run, or a run goes on."""

import argparse
from pathlib import Path

from tensorferry.cli.numbers import positive

_EXAMPLES = """examples:
  ferry train unet3d-brain --budget 1.5GiB --precision bf16 --set resolution=96 --steps 200 --out runs/brain
  ferry train bert-classify --data reviews.csv --from pretrained       fine-tune on your own file
  ferry train my.py:Recipe                                             a recipe of your own
  ferry train --resume runs/brain                                      continue after a stop, a kill or a crash

Without --every a run saves ten times. It evaluates at the end, and before that as often as costs no more than a tenth of
the work of training. SIGTERM and Ctrl-C finish the step, save, and exit with 143 and 130.
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "train",
        help="train a recipe, inside a memory budget if you like, or resume a run",
        description="Train a recipe. The run is a folder with checkpoints, metrics, the memory plan and a report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="a name from `ferry recipes`, package.module:Recipe or file.py:Recipe"
    )
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="continue this run with the options it was started with")
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="your file or folder (default: the data that comes with the recipe)"
    )
    parser.add_argument(
        "--from", dest="start", metavar="START", help="start from scratch or pretrained (default: the recipe's choice)"
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="how many steps to train, short for --set steps=N")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the recipe, such as batch=4; repeatable",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put the run (default: runs/ and the recipe's name)")
    parser.add_argument("--force", action="store_true", help="overwrite the run in that folder")
    parser.add_argument("--every", type=positive, metavar="N", help="evaluate and save every N steps (default: see below)")
    parser.add_argument(
        "--seed", type=_seed, metavar="N", help="the same seed gives the same bits (default: drawn and written down)"
    )
    parser.add_argument(
        "--precision", metavar="NAME", help="fp32, bf16, fp16, or auto: what this hardware does fast (default: fp32)"
    )
    parser.add_argument(
        "--budget", metavar="BYTES", help='the most memory a step may hold, such as "1.5GiB", or "auto": most of what is free'
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of text")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry import BadOption
    from tensorferry.train.progress import make_progress
    from tensorferry.train.start import TrainRequest, begin, resume

    progress = make_progress(options.json)
    if options.resume is not None:
        _refuse_with_resume(options)
        return resume(options.resume, progress, options.recipe)
    if options.recipe is None:
        raise BadOption("name a recipe (ferry train RECIPE), or a run to resume (ferry train --resume FOLDER)")
    settings = dict(_pair(text) for text in options.set)
    if options.steps is not None:
        settings["steps"] = str(options.steps)
    request = TrainRequest(
        recipe=options.recipe,
        settings=settings,
        start=options.start,
        data=options.data,
        out=options.out,
        force=options.force,
        every=options.every,
        seed=options.seed,
        precision=options.precision or TrainRequest.precision,
        budget=options.budget,
        command=options.command,
    )
    return begin(request, progress)


def _refuse_with_resume(options: argparse.Namespace) -> None:
    from tensorferry import BadOption

    given = ("data", "start", "steps", "set", "out", "force", "every", "seed", "precision", "budget")
    unset = {"set": [], "force": False}
    wrong = [f"--{'from' if name == 'start' else name}" for name in given if getattr(options, name) != unset.get(name)]
    if wrong:
        raise BadOption(f"--resume uses the options the run was started with; leave out {', '.join(wrong)}, or start a new run")


def _pair(text: str) -> tuple[str, str]:
    from tensorferry import BadRecipe

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadRecipe(f"cannot read {text!r}; write --set name=value, as in --set batch=4")
    return name.strip(), value.strip()


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected a whole number from zero up to 2147483647, received {text!r}")
    return int(text)
