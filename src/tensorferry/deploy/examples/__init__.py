"""Complete pipelines to begin with, made here of what packages bring, and laid out as services.

What comes out is a folder like any user's: a `pipeline.yaml` beside the models of its services, a request to send, and a client.
"""

import secrets
import shutil
from pathlib import Path

from tensorferry.deploy.chart import fill
from tensorferry.deploy.examples.example import PipelineExample
from tensorferry.deploy.examples.page import PAGE
from tensorferry.deploy.examples.trained import BRAIN, REVIEWS
from tensorferry.deploy.folder import check_target
from tensorferry.deploy.options import ExampleOptions
from tensorferry.errors import BadOption
from tensorferry.extras import missing_extra
from tensorferry.messages import did_you_mean

EXAMPLES = {each.name: each for each in (REVIEWS, BRAIN, PAGE)}


def write_example(options: ExampleOptions) -> None:
    """Make and write it; raises BadOption, MissingExtra and the like, with nothing written."""
    example = find_example(options.name)
    check_target(options.to)
    parent = options.to.absolute().parent
    if not parent.is_dir():
        raise BadOption(f"there is no folder {str(parent)!r} to write {options.to.name!r} in; make it first")
    if options.steps is not None and not example.steps:
        raise BadOption(f"nothing is trained for {example.name!r}; leave out --steps {options.steps}")
    if example.steps:
        try:  # before minutes of training, not behind them
            import tensorferry.optimization.command  # noqa: F401
        except ModuleNotFoundError as error:
            raise missing_extra("ferry deploy example", error.name, "optimize") from error
    make_example(example, options.to, options.steps or example.steps, options.seconds)


def find_example(name: str) -> PipelineExample:
    """The example of this name; raises BadOption."""
    if name not in EXAMPLES:
        raise BadOption(f"there is no example {name!r}{did_you_mean(name, EXAMPLES)}; there are {', '.join(EXAMPLES)}")
    return EXAMPLES[name]


def make_example(example: PipelineExample, folder: Path, steps: int, seconds: float) -> None:
    """Write an example into a new folder, whole or not at all."""
    part = folder.with_name(f".{secrets.token_hex(8)}.part")
    try:
        made = example.make(part, steps, seconds)
        for file in ("pipeline.yaml", "README.md", "ask.py"):
            (part / file).write_text(fill(f"example/{file}.j2", example=example, made=made), "utf-8")
        example.write_request(part / example.request)
        part.rename(folder)
    except OSError as error:
        raise BadOption(f"cannot write {str(folder)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
