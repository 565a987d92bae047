"""Bytes and seconds, as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.errors import BadBudget, FerryError
from tensorferry.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (1, 1),
        ("1", 1),
        ("512B", 512),
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        (" 1.5 GB ", 1_500_000_000),
        (".5KiB", 512),
        ("3.KB", 3000),
        ("1TiB", 2**40),
        ("800MB", 800_000_000),
    ],
)
def test_bytes_are_read_as_people_write_them(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["2 potatoes", "", "GiB", "-1GiB", "1e9", "two", "1 GiB extra", 0, -3, "0", "0.1B", True, None, 1.5, [1]]
)
def test_what_is_no_number_of_bytes_is_refused(text: object) -> None:
    with pytest.raises(BadBudget) as caught:
        parse_bytes(text)  # type: ignore[arg-type]
    assert isinstance(caught.value, FerryError)
    assert isinstance(caught.value, ValueError)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (500 * 2**20, "500 MiB"),
        (1023 * 2**20, "1023 MiB"),
        (2**30, "1 GiB"),
        (5 * 2**40, "5 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_written_short(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(1, 2**50))
def test_written_bytes_are_read_back_within_a_percent(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2e-7, "0.2 µs"),
        (3.21e-5, "32.1 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1000 ms"),
        (1.5, "1.5 s"),
        (59.9, "59.9 s"),
        (61, "1 min 1 s"),
        (119.8, "2 min 0 s"),
    ],
)
def test_seconds_are_written_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
