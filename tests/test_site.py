"""The documentation as a site: it builds without a warning, and needs nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy: the builder writes into the folder of its configuration."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    builder = Path(sys.executable).with_name("zensical")
    built = subprocess.run(
        [builder, "build", "--strict"], cwd=folder, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"}
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_page_of_the_navigation_is_built(site: Path) -> None:
    named = re.findall(r"(\S+)\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert named
    assert not [name for name in named if not (site / f"{name}.html").exists()]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {(page.name, url) for page in site.rglob("*.html") for url in _LOADED.findall(page.read_text())}
    assert loaded
    assert not [each for each in loaded if each[1].startswith(("http:", "https:", "//"))]


def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    page = (site / "reference.html").read_text()
    assert "A context in which training" in page
    assert 'id="tensorferry.large_model"' in page
