"""Blocks: their phase, their memory, and what becomes of it when they die."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.tiers.memory import MemoryPool, address_of

MIB = 2**20


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@given(nbytes=st.integers(0, 5 * MIB), phase=st.integers(0, 4095))
def test_a_block_has_its_size_its_phase_and_room_for_every_byte(nbytes: int, phase: int) -> None:
    block = MemoryPool().block(nbytes, phase)
    view = block.view
    assert view.nbytes == nbytes
    assert not view.readonly
    if nbytes:
        assert address_of(view) % 4096 == phase
        view[0], view[-1] = 1, 2
        shared = np.frombuffer(block.mapping, dtype=np.uint8, count=nbytes, offset=block.offset)
        shared[-1] = 3
        assert view[-1] == 3


@pytest.mark.parametrize("nbytes", [3 * MIB // 2, 4 * MIB, 33 * MIB + 5])
def test_a_filled_block_holds_no_more_memory_than_its_bytes(nbytes: int) -> None:
    memory = MemoryPool()
    before = resident_nbytes()
    block = memory.block(nbytes, 64)
    block.mapping[:] = 1
    assert resident_nbytes() - before < nbytes + MIB
    del block
    assert resident_nbytes() - before < MIB


def test_memory_goes_back_only_when_the_last_sharer_is_gone() -> None:
    memory = MemoryPool()
    before = resident_nbytes()
    block = memory.block(32 * MIB, 64)
    view = block.view
    np.frombuffer(view, dtype=np.uint8)[:] = 7  # bytes of that size might stay in the heap, and count
    part = np.frombuffer(block.mapping, dtype=np.uint8, count=100, offset=block.offset)[50:]
    del block, view
    assert part[0] == 7
    assert resident_nbytes() - before > 30 * MIB
    del part
    assert resident_nbytes() - before < 2 * MIB


def test_dead_blocks_are_reused_within_the_limit() -> None:
    memory = MemoryPool()
    memory.spare_limit_nbytes = 9 * MIB
    first = memory.block(8 * MIB, 0)
    first.mapping[:] = 1
    where = address_of(first.view)
    del first
    assert memory.spare_nbytes == 8 * MIB
    before = resident_nbytes()
    again = memory.block(8 * MIB, 0)
    assert address_of(again.view) == where
    assert memory.spare_nbytes == 0
    again.mapping[:] = 2
    assert resident_nbytes() - before < MIB, "reused memory is resident already"


def test_a_spare_is_cut_to_a_smaller_block_but_not_to_a_much_smaller_one() -> None:
    memory = MemoryPool()
    memory.spare_limit_nbytes = 32 * MIB
    del_me = memory.block(16 * MIB, 0)
    where = address_of(del_me.view)
    del del_me
    small = memory.block(2 * MIB, 0)
    assert address_of(small.view) != where
    fitting = memory.block(10 * MIB, 100)
    assert address_of(fitting.view) == where + 100
    assert fitting.mapping.nbytes == 10 * MIB + 4096


def test_the_newest_spares_stay_when_the_limit_is_reached() -> None:
    memory = MemoryPool()
    memory.spare_limit_nbytes = 10 * MIB
    old, new, huge = memory.block(4 * MIB, 0), memory.block(8 * MIB, 0), memory.block(11 * MIB, 0)
    del old
    del new
    assert memory.spare_nbytes == 8 * MIB
    del huge
    assert memory.spare_nbytes == 8 * MIB
    memory.spare_limit_nbytes = 0
    assert memory.spare_nbytes == 0


def test_blocks_that_die_in_the_collector_and_in_many_threads_keep_the_limit() -> None:
    memory = MemoryPool()
    memory.spare_limit_nbytes = 3 * MIB
    errors: list[str] = []

    def churn(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(200):
            block = memory.block(int(random.integers(1, 2 * MIB)), 64)
            block.view[:1] = bytes([seed])
            cycle: list[object] = [block]
            cycle.append(cycle)
            if block.view[0] != seed:
                errors.append("two live blocks share memory")
            del block, cycle
            if random.random() < 0.1:
                gc.collect()
            if memory.spare_nbytes > 3 * MIB:
                errors.append("over the limit")

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="comes back from its tier"):
        MemoryPool().block(2**60, 0)
