"""The disk and shared-memory tiers: what goes out comes back, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorferry.errors import TierFull, TierLost
from tensorferry.machine import TierSpeed
from tensorferry.tiers.files import FileTier
from tensorferry.tiers.memory import address_of
from tensorferry.tiers.scratch_file import file_system
from tensorferry.tiers.space import size_class

MIB = 2**20
SHM = Path("/dev/shm")


@pytest.fixture(params=["disk", "shm"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileTier]:
    if request.param == "shm" and not SHM.is_dir():
        pytest.skip("no /dev/shm here")
    opened = FileTier(request.param, tmp_path if request.param == "disk" else SHM)
    yield opened
    opened.close()


def random_bytes(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("nbytes", [0, 1, 511, 4096, 5 * MIB + 77])
@pytest.mark.parametrize("start", [0, 64, 512, 4000])
def test_a_block_comes_back_into_memory_of_any_alignment(tier: FileTier, start: int, nbytes: int) -> None:
    memory = random_bytes(64 + nbytes, seed=nbytes)
    slot = tier.write(memory[64:].data)
    target = np.zeros(start + nbytes, dtype=np.uint8)
    tier.read_into(slot, target[start:].data)
    assert (target[start:] == memory[64:]).all()
    assert not target[:start].any()
    with pytest.raises(ValueError, match="has room for"):
        tier.read_into(slot, np.zeros(nbytes + 1, dtype=np.uint8).data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    start=st.integers(0, 5000),
    nbytes=st.one_of(st.integers(0, 20_000), st.sampled_from([511, 512, 513, 4095, 4096, 4097, MIB - 1, MIB, 3 * MIB + 77])),
)
def test_any_block_at_any_address_comes_back(tier: FileTier, start: int, nbytes: int) -> None:
    memory = random_bytes(start + nbytes, seed=nbytes)
    block = memory[start:].data
    slot = tier.write(block)
    assert slot.nbytes == nbytes
    for phase in (0, 64, start):
        there = np.zeros(phase + nbytes, dtype=np.uint8)
        tier.read_into(slot, there[phase:].data)
        assert there[phase:].data == block
        assert not there[:phase].any()
    back = tier.read(slot)
    assert back.view == block
    assert back.nbytes == nbytes
    if nbytes:
        assert address_of(back.view) % 4096 == address_of(block) % 4096
    tier.release(slot)


def test_a_slot_can_be_read_twice_into_separate_memory(tier: FileTier) -> None:
    data = random_bytes(MIB)
    slot = tier.write(data.data)
    first, second = tier.read(slot), tier.read(slot)
    first.view[:] = bytes(MIB)
    assert second.view == data.data
    assert tier.read(slot).view == data.data


def test_read_only_and_typed_views_can_be_written(tier: FileTier) -> None:
    values = np.arange(100_000, dtype=np.float32)
    values.flags.writeable = False
    block = tier.read(tier.write(values.data))
    assert np.array_equal(np.frombuffer(block.mapping, np.float32, count=values.size, offset=block.offset), values)


def test_threads_do_not_disturb_each_other(tier: FileTier) -> None:
    tier.keep_spare(4 * MIB)
    wrong: list[int] = []

    def churn(seed: int) -> None:
        random = np.random.default_rng(seed)
        held: list[tuple[object, np.ndarray]] = []
        for _ in range(60):
            data = random.integers(0, 256, int(random.integers(1, 2 * MIB)), dtype=np.uint8)
            held.append((tier.write(data.data), data))
            if len(held) > 4:
                slot, expected = held.pop(int(random.integers(len(held))))
                if tier.read(slot).view != expected.data:  # type: ignore[arg-type]
                    wrong.append(seed)
                tier.release(slot)  # type: ignore[arg-type]

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_released_room_is_used_again(tier: FileTier) -> None:
    data = random_bytes(3 * MIB)
    sizes = [MIB, 3 * MIB, 2 * MIB + 5, 3 * MIB]
    slots = [tier.write(data[:nbytes].data) for nbytes in sizes]
    highest = max(slot.offset + slot.room_nbytes for slot in slots)
    for _ in range(20):
        for slot in slots:
            tier.release(slot)
        slots = [tier.write(data[:nbytes].data) for nbytes in reversed(sizes)]
        assert max(slot.offset + slot.room_nbytes for slot in slots) <= highest
        assert all(slot.room_nbytes <= size_class(slot.nbytes) for slot in slots)


def test_a_slot_released_twice_is_noticed(tier: FileTier) -> None:
    slot = tier.write(random_bytes(MIB).data)
    tier.release(slot)
    with pytest.raises(ValueError, match="released twice"):
        tier.release(slot)


def test_more_than_is_free_is_refused_before_the_run(tier: FileTier) -> None:
    tier.check_room(MIB)
    with pytest.raises(TierFull, match=rf"{tier.name} tier in .* needed, .* free; .*or raise the budget") as caught:
        tier.check_room(2**60)
    assert "1048576 TiB" in str(caught.value) or "1.05e+06 TiB" in str(caught.value)


def test_no_file_is_ever_visible(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path)
    tier.write(random_bytes(MIB).data)
    assert list(tmp_path.iterdir()) == []
    tier.close()


def test_a_folder_removed_under_way_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    tier = FileTier("disk", folder)
    data = random_bytes(MIB)
    slot = tier.write(data.data)
    folder.rmdir()
    another = tier.write(data[::-1].copy().data)
    assert tier.read(slot).view == data.data
    assert tier.read(another).view == data[::-1].copy().data
    tier.check_room(MIB)
    tier.close()


def test_a_closed_tier_says_so_and_closes_twice(tier: FileTier) -> None:
    data = random_bytes(MIB)
    slot = tier.write(data.data)
    block = tier.read(slot)
    tier.close()
    tier.close()
    assert block.view == data.data, "blocks outlive their tier"
    tier.release(slot)
    for use in (lambda: tier.read(slot), lambda: tier.write(data.data), lambda: tier.check_room(1)):
        with pytest.raises(TierLost, match="it is closed"):
            use()


def test_closing_gives_the_disk_space_back(tmp_path: Path) -> None:
    def descriptors() -> int:
        return sum(entry.is_symlink() and str(tmp_path) in str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir())

    tier = FileTier("disk", tmp_path)
    tier.write(random_bytes(MIB).data)
    assert descriptors() == 1
    tier.close()
    assert descriptors() == 0


def test_lost_bytes_are_an_error_that_names_folder_and_cause(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path)
    slot = tier.write(random_bytes(MIB).data)
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(tmp_path) in str(entry.readlink()):
            os.truncate(entry, 0)  # as if the device had lost them
    with pytest.raises(TierLost, match=r"the file ends at byte 0 while copying 1 MiB.*another folder") as caught:
        tier.read(slot)
    assert str(tmp_path) in str(caught.value)
    tier.close()


LIMITED = """
import resource, sys
import numpy as np
from pathlib import Path
from tensorferry.errors import TierFull
from tensorferry.tiers.files import FileTier

resource.setrlimit(resource.RLIMIT_FSIZE, (10 * 2**20, 10 * 2**20))
tier = FileTier(sys.argv[1], Path(sys.argv[2]))
data = np.arange(2**20, dtype=np.uint32)  # 4 MiB
slots = [tier.write(data.data), tier.write(data.data)]
for _ in range(3):
    try:
        tier.write(data.data)
    except TierFull as error:
        print(error)
assert tier.read(slots[0]).view == data.data.cast("B")
tier.release(slots.pop())
assert tier.read(tier.write(data[::-1].copy().data)).view == data[::-1].copy().data.cast("B")
small = tier.write(data[:2**18].data)  # what is left after a failed write is still there
assert tier.read(small).view == data[:2**18].data.cast("B")
"""


@pytest.mark.parametrize("name", ["disk", "shm"])
def test_a_tier_that_fills_up_under_way_stays_usable(name: str, tmp_path: Path) -> None:
    done = run_python(LIMITED, name, tmp_path if name == "disk" else SHM)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("4 MiB needed" in line and "File too large" in line and "raise the budget" in line for line in lines)


FULL = """
import subprocess, sys
import numpy as np
from pathlib import Path
from tensorferry.errors import TierFull
from tensorferry.tiers.files import FileTier

mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", sys.argv[1]], capture_output=True)
if mounted.returncode:
    sys.exit(77)
tier = FileTier("disk", Path(sys.argv[1]))
print(tier.describe)
data = np.arange(2**20, dtype=np.uint32)  # 4 MiB
slot = tier.write(data.data)
for _ in range(3):
    try:
        tier.write(np.concatenate((data, data[:100_000])).data)
    except TierFull as error:
        print(error)
assert tier.read(slot).view == data.data.cast("B")
tier.release(slot)
assert tier.read(tier.write(data.data)).view == data.data.cast("B")
"""


def test_a_full_file_system_under_way_is_tier_full(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "--map-root-user", sys.executable, "-c", FULL, str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    described, *lines = done.stdout.splitlines()
    assert described == f"disk {tmp_path}, buffered: this is memory, not a disk"
    assert len(lines) == 3
    assert all("No space left on device" in line for line in lines)


KILLED = """
import sys, time
import numpy as np
from pathlib import Path
from tensorferry.tiers.files import FileTier

tier = FileTier(sys.argv[1], Path(sys.argv[2]))
slots = [tier.write(np.ones(2**20, dtype=np.uint8).data) for _ in range(48)]
print("written", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["disk", "shm"])
def test_nothing_is_left_after_a_kill(name: str, tmp_path: Path) -> None:
    folder = tmp_path if name == "disk" else SHM
    before = set(folder.iterdir())
    child = subprocess.Popen([sys.executable, "-c", KILLED, name, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    held = [entry for entry in Path(f"/proc/{child.pid}/fd").iterdir() if str(entry.readlink()).startswith(f"{folder}/")]
    (file,) = held
    status = file.stat()
    assert status.st_nlink == 0
    assert status.st_blocks * 512 >= 48 * MIB
    assert set(folder.iterdir()) <= before
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert set(folder.iterdir()) <= before


RESIDENT = """
import sys
import numpy as np
from pathlib import Path
from tensorferry.tiers.files import FileTier

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

MIB = 2**20
tier = FileTier(sys.argv[1], Path(sys.argv[2]))
data = np.ones(16 * MIB, dtype=np.uint8)
start = resident()
slots = [tier.write(data.data) for _ in range(8)]
assert resident() - start < 4 * MIB, "bytes in the tier are not the process's own"
blocks = [tier.read(slot) for slot in slots]
assert 128 * MIB <= resident() - start < 132 * MIB, resident() - start
del blocks
assert resident() - start < 4 * MIB, "dead blocks give their memory back"
tier.keep_spare(40 * MIB)
blocks = [tier.read(slot) for slot in slots]
del blocks
assert 30 * MIB < resident() - start < 41 * MIB, "spares are bounded"
tier.close()
assert resident() - start < 4 * MIB
"""


@pytest.mark.parametrize("name", ["disk", "shm"])
def test_resident_memory_follows_the_blocks_alive(name: str, tmp_path: Path) -> None:
    done = run_python(RESIDENT, name, tmp_path if name == "disk" else SHM)
    assert done.returncode == 0, done.stderr


def test_speed_before_any_copy_is_the_known_one_and_then_the_real_one(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path, known=TierSpeed("disk", 1.0, 2.0, latency_seconds=0.0))
    assert (tier.speed().out_nbytes_per_second, tier.speed().in_nbytes_per_second) == (1.0, 2.0)
    start = time.perf_counter()
    slot = tier.write(random_bytes(4 * MIB).data)
    least = 4 * MIB / (time.perf_counter() - start)
    assert tier.speed().out_nbytes_per_second >= least
    assert tier.speed().in_nbytes_per_second == 2.0
    tier.read(slot)
    assert tier.speed().in_nbytes_per_second > 1000
    capacity_nbytes = tier.speed().capacity_nbytes
    assert capacity_nbytes is not None
    assert capacity_nbytes > 0
    tier.close()


def test_speed_is_measured_where_nothing_is_known(tier: FileTier) -> None:
    speed = tier.speed()
    assert speed.name == tier.name
    assert speed.out_nbytes_per_second > 0
    assert speed.in_nbytes_per_second > 0
    assert speed.latency_seconds > 0


def test_the_report_learns_how_copies_are_made(tmp_path: Path) -> None:
    tier = FileTier("disk", tmp_path)
    if file_system(tmp_path) != "tmpfs":
        assert tier.describe in (f"disk {tmp_path}, direct I/O", f"disk {tmp_path}, buffered: the file system refuses direct I/O")
    tier.close()
    in_memory = FileTier("disk", SHM)
    assert in_memory.describe == "disk /dev/shm, buffered: this is memory, not a disk"
    in_memory.close()
    shm = FileTier("shm", SHM)
    assert shm.describe == "shm /dev/shm"
    shm.close()
