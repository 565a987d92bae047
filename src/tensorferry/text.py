"""Text from anywhere, made fit to be shown: an op's name can hold anything."""


def printable(text: str) -> str:
    r"""Text without anything that a terminal or a browser could take for more than text.

    >>> printable("conv\x1b[31m\n")
    'conv�[31m'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text).strip()


def clip(text: str, num_chars: int) -> str:
    """Printable text of at most that many characters; the middle is left out, as both ends of an op's path tell it apart.

    >>> clip("model.encoder.layer.conv", 13)
    'model.…r.conv'
    """
    text = printable(text)
    if len(text) <= num_chars:
        return text
    tail = (num_chars - 1) // 2
    return f"{text[: num_chars - 1 - tail]}…{text[-tail:]}"


def percent(share: float) -> str:
    """A share of one for people.

    >>> percent(0.5)
    '50 %'
    """
    return f"{100 * share:.0f} %"


def rounded(value: float) -> str:
    """A number with about four digits that matter, written as people write it.

    >>> rounded(4931.7), rounded(0.98551), rounded(12345.6)
    ('4,932', '0.9855', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
