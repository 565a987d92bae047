"""Pages from Jinja2 templates. What is put into one is escaped, and a page loads nothing from outside.

A template's name is "package/file": "report/report.html.j2" is `tensorferry/report/templates/report.html.j2`. Pages extend
"pages/layout.html.j2", which brings the style and a content security policy under which no script runs but the page's own.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorferry.errors import BadOption
from tensorferry.files import write_whole
from tensorferry.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class PageHead:
    """What stands at the top of a page."""

    kind: str
    verdict: str
    where: str
    state: str  # "fits", "waiting" or "over"


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large type: what it is, its value with its unit, and what to know about it."""

    title: str
    value: str
    note: str = ""
    is_bad: bool = False


def render(template: str, **values: Any) -> str:
    """A template with its values filled in."""
    return _environment().get_template(template).render(values)


def write_page(path: str | Path, page: str) -> Path:
    """Write a page, whole or not at all, and return where it is."""
    return write_file(check_ending(path, ".html"), page)


def write_file(path: Path, text: str) -> Path:
    """Write a file that was asked for, whole or not at all, and return where it is."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise BadOption(f"cannot write {str(path)!r}: {error.strerror}") from error
    return path


def check_ending(path: str | Path, *endings: str) -> Path:
    """The path, if its name has one of these endings; raises `BadOption` otherwise."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise BadOption(f"cannot write {str(path)!r}: end it with {' or '.join(endings)}")
    return path


@cache
def _environment() -> "Environment":
    # here, so that a program that makes no page does not load it
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"asset": _read_asset, "make_policy": _make_policy}
    environment.filters["unbroken"] = _unbroken
    return environment


def _read(name: str) -> str:
    package, _, file = name.rpartition("/")
    return files("tensorferry").joinpath(package, "templates", file).read_text("utf-8")


def _read_asset(name: str) -> "Markup":
    """A style sheet or a script of ours, as it is."""
    from markupsafe import Markup

    return Markup(_read(name))


def _make_policy(script: str) -> str:
    """A content security policy that lets one script run, or none: markup that slipped in would stay without effect."""
    allowed = "'none'"
    if script:
        allowed = f"'sha256-{base64.b64encode(hashlib.sha256(_read(script).encode()).digest()).decode()}'"
    # connections: the server's page asks its own server; a page that was opened as a file has nobody to ask
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'"


def _clean(value: Any) -> Any:
    """Every text on its way into a page: lines stay, control characters go."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _unbroken(text: str) -> "Markup":
    """Text in which no line ends between a number and its unit."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=\d) (?=[A-Za-zµ%]{1,3}\b|%)", "&nbsp;", escape(printable(text))))
