"""What error messages are made of."""

from collections.abc import Iterable
from difflib import get_close_matches

from tensorferry.errors import FerryError


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The names nearest to one that is unknown, as a question for an error; nothing where none is near.

    >>> did_you_mean("resnet5", ["resnet50", "googlenet"])
    " (did you mean 'resnet50'?)"
    """
    asked, known = name.lower(), list(names)
    begun = [each for each in known if asked and each.startswith(asked)][:3]
    close = begun or get_close_matches(asked, known, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def first_line(error: BaseException) -> str:
    """The first line that an error says anything in; its kind where it says nothing.

    >>> first_line(MemoryError()), first_line(ValueError("no such op\\nin step 3"))
    ('MemoryError', 'no such op')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def kind_and_first_line(error: BaseException) -> str:
    """The same after the error's kind, for errors of others that are told within one of ours.

    >>> kind_and_first_line(MemoryError()), kind_and_first_line(ValueError("no such op\\nin step 3"))
    ('MemoryError', 'ValueError: no such op')
    """
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


def find_ours(error: BaseException | None) -> FerryError | None:
    """The error of ours that Keras put another in place of, often of another class, with a layer's arguments in its text."""
    found = None
    while error is not None:
        if isinstance(error, FerryError):
            found = error
        error = error.__context__
    return found
