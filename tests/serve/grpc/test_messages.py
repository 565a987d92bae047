"""How gRPC frames messages: however their bytes come, the same messages come out."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import pack

from tensorferry.errors import FerryError
from tensorferry.serve.core.faults import InvalidRequest, MemoryFull, ModelFault, NotFound, RequestFault, TooLarge
from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.received import Received
from tensorferry.serve.grpc.messages import MessageReader, Status, quote_text, read_timeout, status_of, write_message


@given(messages=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(write_message, messages))
    reader, taken, at, turn = MessageReader("", 100, Charge(MemoryBudget(0))), [], 0, 0
    while at < len(data):
        part = data[at : at + cuts[turn % len(cuts)]]
        reader.append(part)
        at, turn = at + len(part), turn + 1
        if turn % 3:  # sometimes more comes before anything is taken
            while (message := reader.take()) is not None:
                taken.append(message)
    while (message := reader.take()) is not None:
        taken.append(message)
    assert taken == messages
    assert (reader.num_unread, reader.num_missing, reader.num_taken) == (0, 0, len(messages))


@given(messages=st.lists(st.binary(max_size=200), max_size=8), cuts=st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_large_messages_come_out_in_pieces_and_are_the_same(messages: list[bytes], cuts: list[int]) -> None:
    """What is large is put together in a thread; here everything beyond 16 bytes is."""
    data = b"".join(map(write_message, messages))
    reader, taken, at, turn = MessageReader("", 200, Charge(MemoryBudget(10_000))), [], 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorferry.serve.grpc.messages.INLINE_RAW_NBYTES", 16)
        while at < len(data):
            part = data[at : at + cuts[turn % len(cuts)]]
            reader.append(part)
            at, turn = at + len(part), turn + 1
            while turn % 3 and (message := reader.take()) is not None:
                taken.append(message)
        while (message := reader.take()) is not None:
            taken.append(message)
    assert [message.finish() if isinstance(message, Received) else message for message in taken] == messages
    assert reader.charge.nbytes == 0


def test_a_message_of_tiny_pieces_takes_no_more_memory_than_its_bytes() -> None:
    reader = MessageReader("", 2**20, Charge(MemoryBudget(0)))
    for byte in write_message(bytes(100_000)):
        reader.append(bytes([byte]))
    assert len(reader.parts) < 10
    assert reader.take() == bytes(100_000)


def test_what_is_missing_is_known_as_soon_as_the_length_is() -> None:
    reader = MessageReader("", 1000, Charge(MemoryBudget(0)))
    assert reader.num_missing == 0
    reader.append(pack(bytes(300))[:5])
    assert reader.take() is None
    assert reader.num_missing == 300
    reader.append(bytes(299))
    assert reader.take() is None
    assert reader.num_missing == 1
    reader.append(b"x")
    assert reader.take() == bytes(299) + b"x"


def test_a_length_beyond_the_limit_is_refused_before_its_bytes() -> None:
    reader = MessageReader("", 1000, Charge(MemoryBudget(0)))
    reader.append(pack(bytes(1001))[:5])
    with pytest.raises(TooLarge, match="1001 bytes, the most this server takes is 1000"):
        reader.take()


@given(text=st.text(max_size=300))
def test_a_status_text_is_printable_and_comes_back(text: str) -> None:
    quoted = quote_text(text)
    assert all(0x20 <= byte < 0x7F for byte in quoted)
    assert unquote(quoted.decode()).strip(" ") == text.strip(" ")


def test_a_very_long_status_text_is_cut_between_characters() -> None:
    for start in range(4):
        quoted = quote_text("x" * start + "ß" * 5000)
        assert 4090 < len(quoted) <= 4096
        assert "%" not in unquote(quoted.decode(), errors="replace")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1H", 3600), ("2M", 120), ("3S", 3), ("1500m", 1.5), ("5u", 5e-6), ("7n", 7e-9), ("0S", 0)]
)
def test_timeouts_are_read_in_every_unit(text: str, seconds: float) -> None:
    assert read_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1", "S", "123456789S", "1s", "1.5S", "-1S", "١S"])
def test_other_timeouts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="grpc-timeout"):
        read_timeout(text)


def test_every_fault_has_a_status_and_what_is_no_fault_is_internal() -> None:
    kinds: list[type[FerryError]] = [
        kind for kind in RequestFault.__subclasses__() if kind is not ModelFault and kind.__module__ == RequestFault.__module__
    ]
    statuses = {kind: status_of(kind("why")) for kind in kinds}
    assert Status.INTERNAL not in statuses.values()
    assert statuses.pop(MemoryFull) is statuses[TooLarge] is Status.RESOURCE_EXHAUSTED
    assert len(set(statuses.values())) == len(statuses)
    assert status_of(ModelFault("why")) is status_of(ZeroDivisionError()) is Status.INTERNAL
    assert statuses[NotFound] is Status.NOT_FOUND
