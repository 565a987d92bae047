"""Text from anywhere stays text."""

import pytest

from tensorferry.text import clip, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [("conv\n\tnext", "conv  next"), ("\x1b[31mred", "\ufffd[31mred"), ("\ud800", "\ufffd"), (" a ", "a"), ("µ≤é", "µ≤é")],
)
def test_printable_takes_out_control_characters(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_clip_keeps_both_ends() -> None:
    text = clip("model.encoder." + "x" * 100 + ".conv", 20)
    assert len(text) == 20
    assert text.startswith("model.enc")
    assert text.endswith(".conv")
