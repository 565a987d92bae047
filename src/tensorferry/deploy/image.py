"""A Containerfile for the server: two stages, packages pinned to what runs here, no root, and what the models need alone.

Beside it lies a bill of materials, which the image holds as well where it is built from the folder that they are in.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tensorferry import __version__
from tensorferry.deploy.bill import SUFFIX, write_bill
from tensorferry.deploy.build import build_image, find_builder
from tensorferry.deploy.chart import fill
from tensorferry.deploy.folder import check_target
from tensorferry.deploy.names import split_image
from tensorferry.deploy.options import ImageOptions
from tensorferry.deploy.packages import Package, add_digests, choose_extras, list_packages
from tensorferry.deploy.repository import read_models
from tensorferry.errors import BadOption
from tensorferry.files import digest, write_whole
from tensorferry.text import printable

USER = 10001  # as the chart's runAsUser
_WHEELS = "/wheels"


def write_image(options: ImageOptions) -> None:
    """Write the Containerfile; raises BadOption or BadModel, with nothing written."""
    check_target(options.to)
    bill = options.to.with_name(f"{options.to.name}{SUFFIX}")
    check_target(bill)
    builder = None if options.build is None else find_builder(options.build)
    if options.is_for_training and options.models is not None:
        raise BadOption("an image for trainings has no server and serves no models; leave out --train or --models")
    models = None if options.models is None else read_models(options.models)
    base = options.base or f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    split_image(base)
    ours = _choose_ours(options.wheel, options.has_digests)
    extras = {*options.extras, *choose_extras(models.steps if models else ())}
    asked = models.requirements if models else ()
    packages = list_packages(models.formats if models else (), extras, asked, is_for_training=options.is_for_training)
    pinned = add_digests(packages) if options.has_digests else packages
    title = "tensorferry training" if options.is_for_training else "tensorferry server"
    names = [printable(each) for each in models.names] if models else []
    text = fill(
        "Containerfile.j2",
        base=base,
        file=printable(options.to.name),
        requirements=sorted([*(each.line for each in pinned), ours.line]),
        has_digests=options.has_digests,
        wheel=ours.wheel,
        wheels=_WHEELS,
        models=None if options.models is None else _in_context(options.models, "the folder of models"),
        names=", ".join(names),
        description=f"A TensorFerry server for {', '.join(names)}" if names else f"A {title}",
        base_name=base.partition("@")[0],
        base_digest=base.partition("@")[2],
        bill=_find_in_context(bill),
        suffix=SUFFIX,
        trust=options.trust,
        is_for_training=options.is_for_training,
        user=USER,
        version=__version__,
    )
    try:
        write_whole(bill, write_bill([*pinned, ours.package], names, title))
        write_whole(options.to, text)
    except OSError as error:
        raise BadOption(f"cannot write {str(options.to)!r}: {error.strerror or error}") from None
    if builder and options.build:
        build_image(builder, options.build, options.to)


@dataclass(frozen=True, slots=True)
class _Ours:
    """How the image gets ourselves."""

    package: Package
    line: str  # that installs it
    wheel: str | None = None  # its path in the folder that the image is built from


def _choose_ours(wheel: Path | None, has_digests: bool) -> _Ours:
    if wheel is None:
        ours = [Package("tensorferry", __version__)]
        (package,) = add_digests(ours) if has_digests else ours
        return _Ours(package, package.line)
    if not wheel.is_file() or wheel.suffix != ".whl":
        raise BadOption(f"{str(wheel)!r} is no wheel; build one with `python -m build --wheel`")
    line = f"{_WHEELS}/{wheel.name}"
    package = Package("tensorferry", __version__, digest(wheel))
    return _Ours(package, f"{line} --hash=sha256:{package.digest}" if has_digests else line, _in_context(wheel, "the wheel"))


def _find_in_context(path: Path) -> str | None:
    """A path as COPY takes it, below the working folder, from which an image is built; None where it is elsewhere."""
    found = os.path.relpath(path.resolve(), Path.cwd())
    return None if found.startswith("..") else found


def _in_context(path: Path, what: str) -> str:
    """The same; raises BadOption where it is elsewhere."""
    found = _find_in_context(path)
    if found is None:
        raise BadOption(
            f"{what} is not below the working folder, from which the image is built; go to a folder above {str(path)!r}"
        )
    return found
