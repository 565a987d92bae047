"""What people write for a model's inputs."""

import pytest

from tensorferry import BadModel
from tensorferry.estimates.inputs import Input, parse_input


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [("8x3x512x512", (8, 3, 512, 512), "fp32"), ("8x128:int64", (8, 128), "int64"), (" 4 ", (4,), "fp32")],
)
def test_shapes_are_read_and_written_as_people_write_them(text: str, shape: tuple[int, ...], dtype: str) -> None:
    found = parse_input(text)
    assert found == Input(shape, dtype)
    assert parse_input(str(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read ''"),
        ("8,3", "write its dimensions as"),
        ("8x", "cannot read"),
        ("0x3", "above zero"),
        ("-8x3", "above zero"),
        ("8x3:fp4", "unknown type 'fp4'"),
    ],
)
def test_anything_else_is_refused_with_an_example(text: str, says: str) -> None:
    with pytest.raises(BadModel, match=says):
        parse_input(text)


def test_the_resolution_is_what_follows_the_channels_or_the_length_of_a_text() -> None:
    assert Input((8, 3, 100, 200)).with_edge(400) == Input((8, 3, 200, 400))
    assert Input((1, 1, 64, 64, 64)).with_edge(96) == Input((1, 1, 96, 96, 96))
    assert Input((8, 100, 200, 3)).with_edge(400) == Input((8, 200, 400, 3))  # channels last
    assert Input((8, 128), "int64").with_edge(512) == Input((8, 512), "int64")
    assert Input((8, 3, 64, 64)).with_batch(2) == Input((2, 3, 64, 64))
