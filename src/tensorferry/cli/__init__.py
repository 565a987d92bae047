"""The `ferry` command: one file a verb, no logic."""

import argparse
import os
import sys
from typing import NoReturn

from tensorferry import CopyStuck, FerryError, RunFailed, TierFull, TierLost, __version__
from tensorferry.cli import (
    bench_serve,
    datasets,
    demo,
    deploy,
    estimate,
    fit,
    machines,
    models,
    new,
    optimize,
    recipes,
    report,
    serve,
    train,
)
from tensorferry.import_path import working_folder_first

_VERBS = (demo, new, datasets, fit, recipes, train, report, optimize, estimate, machines, models, serve, bench_serve, deploy)
_FAILED = (RunFailed, TierFull, TierLost, CopyStuck)  # under way: what was asked for could be begun


_EXAMPLES = """examples:
  ferry demo                                                     see it work: an MRI under a hard memory cap
  ferry estimate resnet50 --batch 512 --on v100-16gb-nvlink2     will it fit?
  ferry train bert-classify --data reviews.csv --out runs/reviews
  ferry optimize runs/reviews --to models/
  ferry serve models/

`ferry VERB --help` shows the options of a verb, with examples.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all of ours."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="ferry",
        description="From out-of-memory to in-production: train inside a memory budget, optimise, serve.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tensorferry {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for verb in _VERBS:
        verb.add_parser(verbs)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 it ran but failed, 2 it could not run, 130 interrupted."""
    parser = make_parser()
    options = parser.parse_args(argv)
    options.command = (parser.prog, *(sys.argv[1:] if argv is None else argv))  # for verbs that write down what was run
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes on its kernels are not what was asked for
    try:
        with working_folder_first():
            code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails once more at its end
        return 1
    except FerryError as error:
        return _fail(str(error), 1 if isinstance(error, _FAILED) else 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return code


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()  # what was shown before the error stays before it
    print(f"ferry: {message}", file=sys.stderr)
    return code
