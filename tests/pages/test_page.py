"""Pages escape what is put into them, look alike, and are written whole or not at all."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed_page import Page

import tensorferry
from tensorferry.errors import BadOption
from tensorferry.pages import PageHead, check_ending, render, write_page
from tensorferry.pages.page import _environment

ROOT = Path(tensorferry.__file__).parent
TEMPLATES = sorted(ROOT.rglob("templates/*.j2"))
HOSTILE = '</script></style></title><b onmouseover="alert(1)">&amp;\x1b[31m\x00\ud800\n\'"'


def test_whatever_is_put_into_a_page_stays_text() -> None:
    text = render("pages/layout.html.j2", head=PageHead(HOSTILE, HOSTILE, HOSTILE, HOSTILE))
    page = Page(text)
    assert page.tags["b"] == 0
    assert page.tags["style"] == 1
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert not set(text) & {"\x1b", "\x00", "\ud800"}
    assert "<b onmouseover=" in page.text


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_turns_escaping_off(path: Path) -> None:
    *package, _, name = path.relative_to(ROOT).parts
    assert _environment().get_template("/".join((*package, name)))
    assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text("utf-8"))


def test_no_page_is_built_from_strings() -> None:
    tag = re.compile(r"""["'].*</?(?:div|p|span|section|h[1-6]|table|t[rdh]|ul|li|svg|rect|g|path|figure|style)\b[^"']*>?""")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if tag.search(line)
    ]
    assert found == []


def test_a_missing_value_is_an_error_and_no_gap() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="head"):
        render("pages/layout.html.j2")


@pytest.mark.parametrize("name", ["page.pdf", "page", "html"])
def test_a_page_ends_with_html(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadOption, match=rf"cannot write '.*{name}': end it with \.html$"):
        write_page(tmp_path / name, "")
    assert list(tmp_path.iterdir()) == []


def test_an_ending_may_be_in_capitals(tmp_path: Path) -> None:
    assert check_ending("A.HTML", ".html") == Path("A.HTML")


def test_a_page_that_cannot_be_written_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadOption, match=r"cannot write '.*page\.html': "):
        write_page(tmp_path / "file" / "page.html", "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_program_that_makes_no_page_does_not_load_jinja() -> None:
    code = "import sys, tensorferry.report, tensorferry.pages; print('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "False"


def top_level_selectors(css: str) -> Iterator[str]:
    """The selectors of the outermost rules."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    depth, start = 0, 0
    for at, letter in enumerate(css):
        if letter == "{":
            if depth == 0:
                yield css[start:at].strip()
            depth += 1
        elif letter == "}":
            depth, start = depth - 1, at + 1


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.css")), ids=lambda path: path.name)
def test_every_style_stays_inside_ours(path: Path) -> None:
    selectors = list(top_level_selectors(path.read_text("utf-8")))
    assert selectors
    assert all(re.search(r"(^|\s|^body)\.ferry(\.fragment)?$", selector) for selector in selectors)


def palettes() -> list[dict[str, str]]:
    """The colours of the light and of the dark page."""
    css = (ROOT / "pages" / "templates" / "page.css").read_text("utf-8")
    pairs = re.findall(r"--([a-z-0-9]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", css)
    return [{name: light for name, light, _ in pairs}, {name: dark for name, _, dark in pairs}]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_text_stands_out_from_its_ground() -> None:
    for palette in palettes():
        for ground in ("page", "card"):
            for ink in ("ink", "soft", "good", "bad", "wait", "out", "recompute", "forward", "backward"):
                assert contrast(palette[ink], palette[ground]) >= 4.5, (ink, ground)
        for mark in ("forward", "backward", "optimizer", "op", "out", "in"):
            assert contrast(palette["on-mark"], palette[mark]) >= 4.5, mark
