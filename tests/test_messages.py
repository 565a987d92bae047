"""What error messages are made of."""

import pytest

from tensorferry.messages import did_you_mean, first_line, kind_and_first_line


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("Larg", " (did you mean 'large'?)"),
        ("b", " (did you mean 'base' or 'big'?)"),
        ("lagre", " (did you mean 'large'?)"),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_names_that_begin_alike_or_are_close_are_asked_about(name: str, question: str) -> None:
    assert did_you_mean(name, {"tiny": 1, "base": 2, "large": 3, "big": 4}) == question


@pytest.mark.parametrize(
    ("error", "line", "with_kind"),
    [
        (ValueError("no such op"), "no such op", "ValueError: no such op"),
        (ValueError("\n  no such op \nin step 3"), "no such op", "ValueError: no such op"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (KeyError("\n"), "'\\n'", "KeyError: '\\n'"),
        (RuntimeError(" \n "), "RuntimeError", "RuntimeError"),
    ],
)
def test_an_error_is_told_by_the_first_line_that_says_anything(error: Exception, line: str, with_kind: str) -> None:
    assert first_line(error) == line
    assert kind_and_first_line(error) == with_kind
