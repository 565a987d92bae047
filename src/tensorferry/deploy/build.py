"""An image, built by what is there for it: buildah, Podman or Docker."""

import os
import shutil
import subprocess
from pathlib import Path

from tensorferry.deploy.names import split_image
from tensorferry.errors import BadOption, RunFailed

_VERBS = {  # with the options that keep the clock out of an image
    "buildah": ("build", "--timestamp", "0"),
    "podman": ("build", "--timestamp", "0"),
    "docker": ("build",),  # goes by SOURCE_DATE_EPOCH
}


def find_builder(name: str) -> str:
    """The program that is to build an image of this name; raises BadOption where there is none."""
    split_image(name)
    found = next((each for each in _VERBS if shutil.which(each)), None)
    if found is None:
        raise BadOption(f"nothing is here to build {name!r} with: install {', '.join(_VERBS)}, or leave out --build")
    return found


def build_image(builder: str, name: str, file: Path) -> None:
    """Build in the working folder; what the builder says is shown. Raises RunFailed."""
    command = [builder, *_VERBS[builder], "--tag", name, "--file", str(file), "."]
    try:
        code = subprocess.run(command, check=False, env=os.environ | {"SOURCE_DATE_EPOCH": "0"}).returncode
    except OSError as error:
        raise RunFailed(f"cannot start {builder}: {error.strerror or error}; {str(file)!r} is written") from None
    if code:
        raise RunFailed(f"{builder} ended with code {code}, see above; {str(file)!r} is written, and can be built again")
