"""What becomes of freed memory. The C library in a process of its own: its settings are the whole process's."""

import resource
import subprocess
import sys
import textwrap

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
