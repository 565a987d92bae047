"""A Containerfile for the server: two stages, packages pinned to what runs here, no root, and what the models need alone."""

import os
import sys
from pathlib import Path

from tensorferry import __version__
from tensorferry.deploy.chart import fill
from tensorferry.deploy.folder import check_target
from tensorferry.deploy.names import split_image
from tensorferry.deploy.options import ImageOptions
from tensorferry.deploy.packages import Package, add_digests, list_packages
from tensorferry.deploy.repository import read_models
from tensorferry.errors import BadOption
from tensorferry.files import digest, write_whole
from tensorferry.text import printable

USER = 10001  # as the chart's runAsUser
_WHEELS = "/wheels"


def write_image(options: ImageOptions) -> None:
    """Write the Containerfile; raises BadOption or BadModel, with nothing written."""
    check_target(options.to)
    if options.is_for_training and options.models is not None:
        raise BadOption("an image for trainings has no server and serves no models; leave out --train or --models")
    models = None if options.models is None else read_models(options.models)
    base = options.base or f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    split_image(base)
    ours, wheel = _choose_ours(options.wheel, options.has_digests)
    packages = list_packages(models.formats if models else (), options.extras, is_for_training=options.is_for_training)
    pinned = add_digests(packages) if options.has_digests else packages
    text = fill(
        "Containerfile.j2",
        base=base,
        file=printable(options.to.name),
        requirements=sorted([*(each.line for each in pinned), ours]),
        has_digests=options.has_digests,
        wheel=wheel,
        wheels=_WHEELS,
        models=None if options.models is None else _in_context(options.models, "the folder of models"),
        names=", ".join(map(printable, models.names)) if models else "",
        trust=options.trust,
        is_for_training=options.is_for_training,
        user=USER,
        version=__version__,
    )
    try:
        write_whole(options.to, text)
    except OSError as error:
        raise BadOption(f"cannot write {str(options.to)!r}: {error.strerror or error}") from None


def _choose_ours(wheel: Path | None, has_digests: bool) -> tuple[str, str | None]:
    """The line that installs ourselves, and the wheel's path in the folder that the image is built from."""
    if wheel is None:
        ours = [Package("tensorferry", __version__)]
        return (add_digests(ours) if has_digests else ours)[0].line, None
    if not wheel.is_file() or wheel.suffix != ".whl":
        raise BadOption(f"{str(wheel)!r} is no wheel; build one with `python -m build --wheel`")
    line = f"{_WHEELS}/{wheel.name}"
    return (f"{line} --hash=sha256:{digest(wheel)}" if has_digests else line), _in_context(wheel, "the wheel")


def _in_context(path: Path, what: str) -> str:
    """A path as COPY takes it: below the working folder, from which an image is built."""
    found = os.path.relpath(path.resolve(), Path.cwd())
    if found.startswith(".."):
        raise BadOption(
            f"{what} is not below the working folder, from which the image is built; go to a folder above {str(path)!r}"
        )
    return found
