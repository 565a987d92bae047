"""What the device does with the allocator's free blocks, in processes of their own: the allocator is the whole process's."""

import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from typing import Any

import numpy as np
import pytest

# what most programs begin with
START = """
    import json
    import numpy as np
    import tensorflow as tf
    from tensorferry.engines.tensorflow.allocator import DeviceMemory

    MIB = 2**20
    kept = tf.ones([MIB], tf.uint8)
    device = DeviceMemory(0)
"""


PROGRAM = (
    START
    + """
    device.reserve(200 * MIB, 0)
    device.save_memory(60 * MIB, 120 * MIB)
    blocks = [tf.fill([6 * MIB], np.uint8(i)) for i in range(20)]
    del blocks[::2]  # holes between what is left
    before, allocated = device.resident_nbytes(), device.allocated_nbytes()
    for _ in range(3):  # holes that were found before must not hide the others
        device.make_room(MIB, (), at_once=False)
        after = device.resident_nbytes()
        more = [tf.fill([5 * MIB], np.uint8(0)) for _ in range(4)]
        del more
    intact = all(bool(tf.reduce_all(block == np.uint8(2 * i + 1))) for i, block in enumerate(blocks))
    print(json.dumps({
        "before": before // MIB, "returned": (before - after) // MIB, "allocated": allocated // MIB, "intact": intact,
        "peak": device.peaks().allocated_nbytes // MIB,
    }))
"""
)


CAPPED = """
    import json, sys
    import tensorflow as tf
    import tensorferry as ferry
    from tensorferry.engines.memory_cap import cap_memory

    weights, x = tf.Variable(tf.zeros([4 * 2**20])), tf.ones([4 * 2**20])
    if len(sys.argv) > 1:
        cap_memory(int(sys.argv[1]))

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights * x) ** 2)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    try:
        ferry.tensorflow.large_function(train, budget="4GiB")(x)
    except ferry.BudgetTooSmall as error:
        print(json.dumps({"error": str(error)}))
"""


COPIED = """
    import json, sys
    import tensorflow as tf
    import tensorferry as ferry
    from tensorferry.engines.tensorflow.large_function import LargeFunction

    volume, kernel = tf.zeros([1, 64, 64, 64, 32]), tf.Variable(tf.zeros([3, 3, 3, 32, 1]))

    def train(volume):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.conv3d(volume, kernel, [1] * 5, "SAME") ** 2)
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    def smallest_nbytes():
        try:
            ferry.tensorflow.large_function(train, budget=2**20)(volume)
        except ferry.BudgetTooSmall as error:
            return error.smallest_nbytes

    foreseen = smallest_nbytes()
    sys.modules[LargeFunction.__module__]._COPYING_KERNEL = "none"
    print(json.dumps([foreseen, smallest_nbytes()]))
"""


CAPPED_PROCESS = """
    import ctypes
    import json
    import tensorflow as tf
    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.engines.tensorflow.allocator import DeviceMemory
    from tensorferry.engines.memory_cap import cap_memory

    MIB = 2**20
    kept, meter, left = tf.ones([2**20]), ResidentMeter(), []
    libc = ctypes.CDLL(None)
    libc.mallopt(-1, 32 * MIB), libc.mallopt(-3, 32 * MIB)  # what is freed at the heap's end stays there
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    libc.free(libc.malloc(3 * MIB))
    limit = meter.data_nbytes() + 600 * MIB
    cap_memory(600 * MIB)
    for room in (0, 4096 * MIB):
        device = DeviceMemory(0)
        device.keep_back(250 * MIB)
        device.reserve(300 * MIB, room)
        blocks = [tf.raw_ops.Empty(shape=[16 * MIB], dtype=tf.uint8, init=False) for _ in range(14)]
        left.append((limit - meter.data_nbytes()) // MIB)
        told = {"room": device.room().nbytes // MIB, "note": device.room().note, "is_bounded": device.is_bounded}
        del blocks
        device.close()
    print(json.dumps({"left": left, **told}))
"""


REFIT = """
    import json
    import tensorflow as tf
    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.engines.tensorflow.allocator import DeviceMemory

    kept, meter, data = tf.ones([2**20]), ResidentMeter(), []
    for _ in range(4):
        device = DeviceMemory(0)
        device.reserve(100 * 2**20, 0)
        device.close()
        data.append(meter.data_nbytes() // 2**20)
    print(json.dumps(data))
"""


ASKED = (
    START
    + """
    device.reserve(200 * MIB, 0)
    device.save_memory(130 * MIB, 200 * MIB)
    blocks = [tf.fill([8 * MIB], np.uint8(i)) for i in range(12)]
    del blocks[::2]  # six holes
    before = device.resident_nbytes()
    device.make_room(16 * MIB, (8 * MIB, 8 * MIB), at_once=False)
    unchanged = device.resident_nbytes()
    device.make_room(64 * MIB, (8 * MIB, 8 * MIB), at_once=False)
    short = device.resident_nbytes()
    more = [tf.fill([8 * MIB], np.uint8(0)) for _ in range(2)]
    told = [before - unchanged, before - short, device.resident_nbytes() - short, device.peaks().allocated_nbytes]
    print(json.dumps([round(nbytes / MIB) for nbytes in told]))  # to the nearest: Python itself takes a page now and then
"""
)


LAST = (
    START
    + """
    device.reserve(400 * MIB, 0)
    device.save_memory(160 * MIB, 220 * MIB)
    blocks = [tf.fill([8 * MIB], np.uint8(i)) for i in range(8)]
    above = [tf.fill([16 * MIB], np.uint8(i)) for i in range(6)]
    del blocks[::2], above  # four small holes below a large one
    told = [device.resident_nbytes()]
    device.make_room(4 * MIB, (), at_once=False)
    told.append(device.resident_nbytes())
    more = [tf.fill([8 * MIB], np.uint8(0)) for _ in range(4)]
    more.append(tf.fill([16 * MIB], np.uint8(0)))
    told.append(device.resident_nbytes())
    print(json.dumps([round(nbytes / MIB) for nbytes in told]))
"""
)


BELOW = (
    START
    + """
    device.reserve(80 * MIB, 0)  # one region of 128 MiB
    device.save_memory(16 * MIB, 100 * MIB)
    low, high = [tf.fill([14 * MIB], np.uint8(1)) for _ in range(5)], tf.fill([8 * MIB], np.uint8(2))
    del low  # a hole that is larger than what is left above
    before = device.resident_nbytes()
    device.make_room(MIB, (), at_once=False)
    returned = before - device.resident_nbytes()
    intact = bool(tf.reduce_all(high == np.uint8(2)))
    print(json.dumps({"returned": returned // MIB, "intact": intact}))
"""
)


HOMES = (
    START
    + """
    from tensorferry.engines.tensorflow.allocator.blocks import _regions, address_of

    types = [tf.float32, tf.float32, tf.float32, tf.bfloat16]
    variables = [tf.Variable(tf.fill([2 * MIB], tf.cast(i, dtype))) for i, dtype in enumerate(types)]
    device.reserve(200 * MIB, 0)
    device.save_memory(100 * MIB, 120 * MIB)
    (region,) = _regions["CPU:0"]

    def count_inside():
        addresses = [address_of(variable.read_value()) for variable in variables]
        return sum(region[0] <= address < region[1] for address in addresses)

    @tf.function
    def step():
        for variable in variables:
            variable.assign(variable + 1)

    before, inside = count_inside(), []
    for _ in range(3):
        step()
        inside.append(count_inside())
        device.tidy(variables)
        inside.append(count_inside())
    values = [float(variable[-1]) for variable in variables]
    print(json.dumps({"before": before, "inside": inside, "values": values}))
"""
)


OVERFLOW = (
    START
    + """
    device.reserve(60 * MIB, 0)  # one region of 128 MiB
    device.save_memory(60 * MIB, 120 * MIB)
    blocks = [tf.fill([6 * MIB], np.uint8(i)) for i in range(40)]
    del blocks[::2]
    before = device.resident_nbytes()
    device.make_room(MIB, (), at_once=False)
    intact = all(bool(tf.reduce_all(block == np.uint8(2 * i + 1))) for i, block in enumerate(blocks))
    print(json.dumps({"returned": (before - device.resident_nbytes()) // MIB, "intact": intact}))
"""
)


UNRELATED = (
    START
    + """
    import mmap
    from tensorferry.engines.resident import ResidentMeter

    meter = ResidentMeter()
    device.reserve(60 * MIB, 0)  # one region of 128 MiB
    device.save_memory(30 * MIB, 60 * MIB)
    blocks = [tf.fill([6 * MIB], np.uint8(i)) for i in range(12)]
    del blocks[::2]
    graph = mmap.mmap(-1, 300 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what TensorFlow may take for a large graph
    data, before = meter.data_nbytes(), device.resident_nbytes()
    for _ in range(4):
        device.make_room(MIB, (MIB,), at_once=True)
    print(json.dumps({"grown": (meter.data_nbytes() - data) // MIB, "returned": (before - device.resident_nbytes()) // MIB}))
"""
)


PIECES = (
    START
    + """
    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.engines.tensorflow.allocator.free_pages import give_back

    meter = ResidentMeter()
    device.reserve(60 * MIB, 0)  # one region of 128 MiB
    device.save_memory(30 * MIB, 60 * MIB)
    blocks = [tf.fill([3 * MIB // 4], np.uint8(i)) for i in range(150)]
    data = meter.data_nbytes()
    del blocks[::2]  # no hole is large enough for what is asked for first, and after a while nothing else is
    for i in range(6):
        device.make_room(MIB, (MIB,), at_once=True)
        blocks.append(tf.fill([6 * MIB], np.uint8(i)))
    intact = all(bool(tf.reduce_all(block == np.uint8(2 * i + 1))) for i, block in enumerate(blocks[:75]))
    told = {"grown": (meter.data_nbytes() - data) // MIB, "intact": intact}

    data, free = meter.data_nbytes(), device._free
    free.pool_nbytes += 8192 * MIB  # wrongly believed to be there, and free in one piece
    free.untouched_nbytes = lambda nbytes: nbytes
    for _ in range(3):
        give_back(free, MIB, ())
    told |= {"mistaken": (meter.data_nbytes() - data) // MIB, "may_ask": free.may_ask}
    print(json.dumps(told))
"""
)


def _run(program: str = PROGRAM, *arguments: str, **settings: str) -> Any:
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"} | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(child.stdout.splitlines()[-1])


def test_pages_of_free_blocks_go_back_above_the_limit_and_no_others() -> None:
    seen = _run()
    assert seen["before"] >= 118  # 60 MiB are live, as much is in holes
    assert seen["allocated"] <= 72
    assert 40 <= seen["returned"] <= 64
    assert seen["intact"]
    assert 118 <= seen["peak"] <= 140  # what was asked for to find them counts for nobody


def test_pages_that_the_next_blocks_lie_on_stay() -> None:
    unchanged, returned, touched, peak = _run(ASKED)
    assert unchanged == 0  # two blocks of 8 MiB fit into holes that have their pages
    assert 24 <= returned <= 33  # four of six holes, all but an edge of each
    assert touched <= 1
    assert peak <= 112  # what was asked for beside them counts for nobody


def test_pages_go_first_that_would_be_used_last_and_no_more_of_them_than_needed() -> None:
    before, after, later = _run(LAST)
    wanted = before + 4 - 160 * (1 - 1 / 16)  # what does not fit, with twice what is worth returning
    assert wanted - 1 <= before - after <= wanted + 16
    assert later - after <= 1  # small holes and the lower part of the large one have kept theirs


def test_a_hole_that_is_larger_than_all_that_lies_above_is_found_too() -> None:
    seen = _run(BELOW)
    assert 50 <= seen["returned"] <= 72
    assert seen["intact"]


def test_variables_that_a_step_assigned_lie_where_they_lay_before() -> None:
    seen = _run(HOMES)
    assert seen["before"] == 0
    wandered, left = seen["inside"][::2], seen["inside"][1::2]
    assert max(wandered) > 0  # a step lets them wander
    # ops run in another order each time, and now and then one finds another's place taken
    assert all(after <= before for before, after in zip(wandered, left, strict=True))
    assert sum(left) < sum(wandered)
    assert seen["values"] == [3.0, 4.0, 5.0, 6.0]


def test_pages_go_back_from_a_second_region_too() -> None:
    seen = _run(OVERFLOW)
    assert seen["returned"] >= 80  # of 120 MiB in holes, most of it beyond the first region
    assert seen["intact"]


def test_memory_that_others_take_is_not_taken_for_the_allocators() -> None:
    seen = _run(UNRELATED)
    assert seen["grown"] <= 1
    assert seen["returned"] >= 30  # of 36 MiB in holes


@cache
def _pieces() -> Any:
    return _run(PIECES)


def test_the_first_wrong_answer_of_the_allocator_is_the_last_that_it_is_asked_for() -> None:
    seen = _pieces()
    assert not seen["may_ask"]
    assert 0 < seen["mistaken"] <= 1100  # one region of addresses, and its bookkeeping


def test_an_allocator_whose_free_blocks_are_in_small_pieces_grows_for_no_more_than_what_is_needed() -> None:
    seen = _pieces()
    assert seen["grown"] <= 300  # the next region, of 256 MiB, for blocks that the old one has no room for
    assert seen["intact"]


def test_a_capped_allocator_is_asked_for_nothing() -> None:
    seen = _run(TF_MKL_ALLOC_MAX_BYTES=str(200 * 2**20))
    assert seen["returned"] <= 2
    assert seen["intact"]


def test_a_step_that_a_capped_allocator_cannot_hold_is_refused_before_it_runs() -> None:
    told = _run(CAPPED, TF_MKL_ALLOC_MAX_BYTES=str(64 * 2**20))["error"]
    assert "one step needs at least" in told
    assert told.endswith("What TensorFlow may allocate is capped by TF_MKL_ALLOC_MAX_BYTES.")
    assert "4 GiB" not in told  # what counts is the cap


def test_the_smallest_budget_has_room_for_what_the_gradient_of_a_filter_copies() -> None:
    foreseen, without = _run(COPIED)
    assert 28 * 2**20 <= foreseen - without <= 44 * 2**20  # 32 MiB, its share of what is unknown, and of the margin


def test_in_a_capped_process_the_allocator_leaves_addresses_to_the_others() -> None:
    seen = _run(CAPPED_PROCESS)
    assert all(250 <= nbytes <= 350 for nbytes in seen["left"])  # by itself it takes all it can get
    assert 224 <= seen["room"] <= 340
    assert seen["is_bounded"]
    assert "RLIMIT_DATA" in seen["note"]


def test_a_step_that_a_capped_process_cannot_hold_is_refused_before_it_runs() -> None:
    told = _run(CAPPED, str(80 * 2**20))["error"]
    assert "one step needs at least" in told
    assert told.endswith("That is what the cap on this process leaves, RLIMIT_DATA (ulimit -d).")


def test_later_trainings_live_where_the_first_one_did() -> None:
    first, *others = _run(REFIT)
    assert max(others) - first < 16  # of addresses, which the allocator would keep


def test_addresses_are_asked_for_a_few_times_at_most_where_nobody_knows_their_region(monkeypatch: pytest.MonkeyPatch) -> None:
    import networks  # noqa: F401  # before TensorFlow is loaded
    import tensorflow as tf

    from tensorferry.engines.resident import ResidentMeter
    from tensorferry.engines.tensorflow.allocator.blocks import LARGEST_NBYTES, FreeBlocks

    block, asked = tf.zeros(8, tf.uint8), []

    def take(_: FreeBlocks, shape: list[int], __: Any = None) -> Any:
        asked.append(int(np.prod(shape)))
        assert len(asked) < 100
        return block  # as from a region that was there before

    monkeypatch.setattr(FreeBlocks, "_take", take)
    monkeypatch.setattr(FreeBlocks, "_region_of", lambda *_: None)
    blocks = FreeBlocks("CPU:0", ResidentMeter())
    blocks.reserve(LARGEST_NBYTES)
    assert asked == [LARGEST_NBYTES * 2**i for i in range(4)]
    assert blocks.start == blocks.end == 0


def test_a_device_reserves_more_than_31_bits_can_count() -> None:
    import networks  # noqa: F401  # before TensorFlow is loaded

    from tensorferry.engines.tensorflow.allocator import DeviceMemory

    device = DeviceMemory(0)
    before_nbytes = device.resident_nbytes()
    device.reserve(5 * 2**30, 0)
    assert device.resident_nbytes() - before_nbytes < 2**30  # addresses, not pages
    device.close()
