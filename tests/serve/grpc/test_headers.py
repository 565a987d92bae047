"""Header blocks: what is kept of them must never change what they mean."""

from typing import Any

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorferry.serve.grpc.frames import Code, ConnectionFault
from tensorferry.serve.grpc.headers import (
    MAX_LIST_NBYTES,
    CallHeaders,
    HeaderReader,
    MalformedHeaders,
    read_headers,
    write_block,
    write_first_block,
)

GOOD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b"te", b"trailers")]

# few values, so that blocks come again, and their numbers come to mean something else
extra_fields = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"grpc-timeout", b"traceparent", b"grpc-encoding", b"x-mine"]),
        st.sampled_from([b"one", b"two", b"three", b"f" * 900]),
        st.booleans(),  # whether the client puts it into the table
    ),
    max_size=4,
)
blocks = st.tuples(extra_fields, st.sampled_from([None, None, None, None, 0, 64, 2000, 4096]))


def encode(encoder: hpack.Encoder, fields: list[tuple[bytes, bytes, bool]]) -> bytes:
    kinds = {True: hpack.HeaderTuple, False: hpack.NeverIndexedHeaderTuple}
    return encoder.encode([*GOOD, *(kinds[indexed](name, value) for name, value, indexed in fields)])


@settings(max_examples=300, deadline=None)
@given(sent=st.lists(blocks, min_size=1, max_size=25))
def test_a_block_that_is_found_means_what_decoding_it_means(sent: list[Any]) -> None:
    encoder, reference, reader = hpack.Encoder(), hpack.Decoder(MAX_LIST_NBYTES), HeaderReader()
    for fields, table_nbytes in sent:
        if table_nbytes is not None:
            encoder.header_table_size = table_nbytes
        block = encode(encoder, fields)
        assert reader.read(block) == read_headers(reference.decode(block, raw=True))
        assert list(reader.table.dynamic_entries) == list(reference.header_table.dynamic_entries)
        assert reader.table.maxsize == reference.header_table.maxsize


def test_a_block_is_found_again_until_the_table_changes() -> None:
    reader, plain = HeaderReader(), write_block(GOOD)
    add_one, add_two = (plain + b"\x40\x0cgrpc-timeout\x03" + value for value in (b"one", b"two"))
    block = plain + b"\xbe"  # whatever was added last
    assert reader.read(add_one).timeout == "one"
    assert not reader.known
    assert reader.read(block) is reader.read(block)
    assert list(reader.known) == [block]
    assert reader.read(block).timeout == "one"
    reader.read(add_two)
    assert not reader.known
    assert reader.read(block).timeout == "two"


def test_what_is_kept_is_bounded() -> None:
    reader = HeaderReader()
    for number in range(500):
        reader.read(write_block([*GOOD, (b"traceparent", b"%d" % number)]))
        assert len(reader.known) <= 32
    reader = HeaderReader()
    reader.read(write_block([*GOOD, (b"x", b"y" * 2000)]))
    assert not reader.known


def test_a_malformed_head_does_not_keep_a_stale_one() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader()
    reader.read(encode(encoder, [(b"grpc-timeout", b"one", True)]))
    block = encode(encoder, [(b"grpc-timeout", b"one", True)])
    reader.read(block)
    with pytest.raises(MalformedHeaders):
        reader.read(encode(encoder, [(b"Upper", b"two", True)]))
    with pytest.raises(MalformedHeaders):
        reader.read(block)  # its last number now stands for the malformed field


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[1:],
        [GOOD[0], GOOD[2], GOOD[3]],
        [GOOD[0], GOOD[1], GOOD[3]],
        [*GOOD[:2], (b":path", b"")],
        [*GOOD, (b":authority", b"late")],
        [GOOD[0], *GOOD],
        [(b":status", b"200"), *GOOD],
        [(b":unknown", b"x"), *GOOD],
        [*GOOD, (b"Upper", b"x")],
        [*GOOD, (b"", b"x")],
        [*GOOD, (b"sp ace", b"x")],
        [*GOOD, (b"col:on", b"x")],
        [*GOOD, (b"\xe4", b"x")],
        [*GOOD, (b"x", b"a\nb")],
        [*GOOD, (b"x", b"a\0b")],
        [*GOOD, (b"x", b" a")],
        [*GOOD, (b"x", b"a\t")],
        [*GOOD, (b"connection", b"close")],
        [*GOOD, (b"transfer-encoding", b"chunked")],
        [*GOOD[:3], (b"te", b"gzip")],
        [*GOOD, (b"content-length", b"-1")],
        [*GOOD, (b"content-length", b"x")],
        [*GOOD, (b"content-length", b"1"), (b"content-length", b"2")],
        [*GOOD, (b"content-length", b"9" * 30)],
    ],
)
def test_fields_that_make_no_request_are_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedHeaders):
        read_headers(fields)


def test_a_head_has_what_the_server_asks_for() -> None:
    fields = [
        *GOOD,
        (b"content-type", b"application/grpc+proto"),
        (b"grpc-encoding", b"gzip"),
        (b"grpc-timeout", b"1S"),
        (b"authorization", b"Bearer one"),
        (b"x-api-key", b"two"),
        (b"content-length", b"12"),
        (b"x-bin", b"\xff"),
    ]
    assert read_headers(fields) == CallHeaders(
        method="POST",
        path="/a/B",
        content_type="application/grpc+proto",
        encoding="gzip",
        timeout="1S",
        key="two",
        content_length=12,
    )


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\x0f", Code.COMPRESSION_ERROR),  # far beyond the table
        (b"\xbe", Code.COMPRESSION_ERROR),  # an entry that nobody made
        (b"\x80", Code.COMPRESSION_ERROR),
        (b"\x40\x05ab", Code.COMPRESSION_ERROR),
        (b"\x3f\xe2\x1f", Code.COMPRESSION_ERROR),  # a table of 4097 bytes
        (b"\x88\x20", Code.COMPRESSION_ERROR),  # a size update behind a field
        (b"\x00\x01a\x83\xff\xff\xff", Code.COMPRESSION_ERROR),  # no Huffman code
        (b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 2000, Code.ENHANCE_YOUR_CALM),  # 6 kB that would be 8 MB
    ],
)
def test_blocks_that_break_the_table_or_blow_up_end_the_connection(block: bytes, code: Code) -> None:
    with pytest.raises(ConnectionFault) as fault:
        HeaderReader().read(block)
    assert fault.value.code is code


@settings(max_examples=300, deadline=None)
@given(block=st.binary(max_size=200))
def test_any_bytes_are_a_head_or_refused(block: bytes) -> None:
    reader = HeaderReader()
    try:
        reader.read(block)
    except (MalformedHeaders, ConnectionFault):
        return
    pytest.fail("random bytes made a request")


def test_what_is_written_leaves_every_table_alone() -> None:
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0  # a client that allows none, and wants to hear that there is none
    fields = [(b":status", b"200"), (b"grpc-status", b"0"), (b"x", b"y" * 300)]
    assert decoder.decode(write_first_block(fields), raw=True) == fields
    assert decoder.decode(write_block(fields), raw=True) == fields
    assert not decoder.header_table.dynamic_entries
