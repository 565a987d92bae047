"""What becomes of freed memory. The C library in a process of its own: its settings are the whole process's."""

import mmap
import resource
import subprocess
import sys
import textwrap
from contextlib import closing

import numpy as np
import pytest

from tensorferry.engines.resident import ResidentMeter, drop_pages

PROGRAM = """
    import ctypes, sys
    from tensorferry.engines.resident import Heap, ResidentMeter

    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    MIB = 2**20

    def use(num_blocks, nbytes):
        blocks = [library.malloc(nbytes) for _ in range(num_blocks)]
        for block in blocks:
            ctypes.memset(block, 1, nbytes)
        for block in blocks:
            library.free(block)

    meter, heap = ResidentMeter(), Heap()
    use(1, 31 * MIB)  # from now on the C library keeps blocks up to this size
    if sys.argv[1] == "return":
        heap.return_at_once(4 * MIB)
    heap.trim()
    before = meter.now_nbytes()
    use(8, 6 * MIB)
    print((meter.now_nbytes() - before) // MIB)
"""


@pytest.mark.parametrize(("choice", "is_kept"), [("leave", True), ("return", False)])
def test_freed_blocks_of_at_least_the_size_go_back_at_once(choice: str, is_kept: bool) -> None:
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), choice], capture_output=True, text=True, check=True)
    kept_mib = int(child.stdout)
    assert kept_mib > 40 if is_kept else kept_mib < 4


HOLES = """
    import ctypes, sys, threading
    from tensorferry.engines.resident import Heap, ResidentMeter

    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    MIB = 2**20

    def make(nbytes):
        block = library.malloc(nbytes)
        ctypes.memset(block, 1, nbytes)
        return block

    def kept():
        before = meter.now_nbytes()
        library.free(make(8 * MIB))
        return meter.now_nbytes() - before

    def run():
        heap.keep_for_reuse()
        # what is small stays, and what is large leaves holes between; those of one thread are small enough for any heap
        blocks = [(make(9 * MIB), make(MIB // 2)) for _ in range(5)]
        for large, _ in blocks:
            library.free(large)
        heap.return_at_once()
        if sys.argv[2] == "trimmed":
            heap.trim()
        before = meter.now_nbytes()
        with heap.free_at_once():
            rise = meter.now_nbytes() - before
            inside = kept()
        heap.keep_for_reuse()
        heap.trim()
        print(rise, inside, kept())

    meter, heap = ResidentMeter(), Heap()
    thread = threading.Thread(target=run)
    run() if sys.argv[1] == "main thread" else (thread.start(), thread.join())
"""


@pytest.mark.parametrize("holes", ["resident", "trimmed"])
@pytest.mark.parametrize("thread", ["main thread", "another thread"])
def test_freed_blocks_go_back_at_once_where_the_heap_has_holes(thread: str, holes: str) -> None:
    program = [sys.executable, "-c", textwrap.dedent(HOLES), thread, holes]
    child = subprocess.run(program, capture_output=True, text=True, check=True)
    rise, kept, kept_for_reuse = map(int, child.stdout.split())
    assert rise < 2**20  # what fills the holes takes addresses and no memory
    assert kept < 2**20
    assert kept_for_reuse > 7 * 2**20  # and the holes are there again


def test_a_peak_stays_a_meters_own_when_another_one_begins_a_new_one() -> None:
    nbytes = 64 * 2**20
    with closing(ResidentMeter()) as meter, closing(ResidentMeter()) as other:
        before = meter.now_nbytes()
        with mmap.mmap(-1, nbytes) as block:  # whatever malloc keeps of what is freed
            np.frombuffer(block, np.uint8)[:] = 1
        other.reset_peak()
        assert other.peak_nbytes() - before < nbytes // 2
        assert other.highest_nbytes() - before > nbytes // 2
        assert meter.peak_nbytes() - before > nbytes // 2
        meter.reset_peak()
        assert meter.peak_nbytes() - before < nbytes // 2
        assert meter.highest_nbytes() - before > nbytes // 2


def test_dropped_pages_are_no_longer_resident_and_neighbours_stay() -> None:
    nbytes = 8 * 2**20
    block = np.ones(3 * nbytes, np.uint8)
    meter = ResidentMeter()
    try:
        before = meter.now_nbytes()
        assert drop_pages(block.ctypes.data + nbytes, nbytes) >= nbytes - 2 * resource.getpagesize()
        assert before - meter.now_nbytes() >= 0.9 * nbytes  # asking took some pages, too
        assert drop_pages(block.ctypes.data + nbytes, nbytes) == 0
    finally:
        meter.close()
    assert block[:nbytes].all()
    assert block[2 * nbytes :].all()


def test_less_than_a_page_is_left_alone() -> None:
    block = np.ones(resource.getpagesize() // 2, np.uint8)
    assert drop_pages(block.ctypes.data, block.nbytes) == 0
    assert block.all()
