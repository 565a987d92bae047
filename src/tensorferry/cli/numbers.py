"""Numbers as verbs take them: read from what a user wrote, or refused with what was expected."""

import argparse


def count(text: str) -> int:
    """A whole number from zero up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from zero up, received {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above zero, received {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Seconds above zero."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above zero, received {text!r}")
    return number
