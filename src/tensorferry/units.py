"""Bytes and seconds: read what people write, write what people read."""

import re

from tensorferry.errors import BadBudget

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Bytes from an integer or from text such as "2GiB", "1.5 GB" or "800MiB".

    >>> parse_bytes("1.5KiB")
    1536
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise BadBudget(f"expected bytes as a whole number or as text such as '2GiB', received {text!r}")
    if isinstance(text, int):
        nbytes = text
    else:
        match = _QUANTITY.fullmatch(text)
        factor = _FACTORS.get(match[2].upper()) if match else None
        if match is None or factor is None:
            raise BadBudget(f"cannot read {text!r} as bytes; write a positive number and a unit, such as '2GiB' or '800MB'")
        nbytes = round(float(match[1]) * factor)
    if nbytes <= 0:
        raise BadBudget(f"expected more than zero bytes, received {text!r}; write for example '2GiB'")
    return nbytes


def format_bytes(nbytes: float) -> str:
    """Bytes for people, in binary units.

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{_short(size)} {unit}"
        size /= 1024
    return f"{_short(size)} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds for people.

    >>> format_seconds(0.0123)
    '12.3 ms'
    """
    if abs(seconds) >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 1:
            return f"{_short(seconds * factor)} {unit}"
    return f"{seconds * 1e6:.2g} µs" if seconds else "0 s"


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"
