"""What an image has installed and nothing else, without a download: links to the packages of this environment in an empty one."""

import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import tensorferry
from tensorferry.deploy.packages import Package

# as pip writes it: processes that are spawned import it again
_FERRY = """\
#!{python}
import sys

from tensorferry.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""


def make_environment(folder: Path, packages: Iterable[Package]) -> Path:
    """An environment with these packages and ourselves; returns its Python, beside which `ferry` is."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for package in packages:
        _link(metadata.distribution(package.name), site)
    # ourselves as the wheel has us: a folder, and what says that it is installed
    (site / "tensorferry").symlink_to(Path(tensorferry.__file__).parent)
    for file in metadata.files("tensorferry") or []:
        if file.parts[0].endswith(".dist-info") and not (site / file.parts[0]).exists():
            (site / file.parts[0]).symlink_to(Path(str(file.locate())).parent)
    ferry = folder / "bin" / "ferry"
    ferry.write_text(_FERRY.format(python=python))
    ferry.chmod(0o755)
    return python


def _link(found: metadata.Distribution, site: Path) -> None:
    for file in found.files or []:
        path = Path(str(file.locate()))
        if file.parts[0] in ("..", "__pycache__") or not path.exists():
            continue
        top = Path(str(found.locate_file(file.parts[0])))
        # a folder that several packages share, as google, is linked part by part
        parts = file.parts[:1] if len(file.parts) == 1 or (top / "__init__.py").exists() else file.parts[:2]
        link = site.joinpath(*parts)
        if not link.exists() and not link.is_symlink():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(str(found.locate_file(Path(*parts)))))
