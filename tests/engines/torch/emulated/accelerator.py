"""Builds and loads the emulated accelerator (`accelerator.cpp`), and sets how it behaves.

Loading it makes the device type "emulated", with two devices, for the rest of the process. It must be loaded before the process's
first backward pass, in which autograd starts a thread for every device that there is.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import types
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
COMPILER = "g++"
NO_COMPILER = f"the emulated accelerator is built with {COMPILER}, which is not installed"
PLENTY_NBYTES = 2**32


class Order(IntEnum):
    """Which streams run late; the main stream is the default one."""

    EAGER = 0  # every op as soon as it may
    MAIN_LATE = 1  # the main stream only when somebody waits for it
    SIDE_LATE = 2  # the other streams only then
    RANDOM = 3  # all of them now and then


def has_compiler() -> bool:
    return shutil.which(COMPILER) is not None


def build() -> Path:
    """The library, compiled unless it was before from the same source for the same torch."""
    options = _options()
    key = hashlib.sha256(SOURCE.read_bytes() + repr((torch.__version__, options)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tensorferry-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one compiles
        if not library.exists():
            unfinished = folder / f"{key}.{os.getpid()}"
            subprocess.run([COMPILER, "-o", str(unfinished), str(SOURCE), *options], check=True)
            unfinished.rename(library)
    return library


def _options() -> list[str]:
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]  # already loaded by the process that loads this
    return ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-pthread", abi, *includes, *libraries]


@cache
def load() -> "Emulated":
    """The accelerator, in this process from now on."""
    torch.set_num_threads(1)  # every stream is a thread
    return Emulated(build())


class Emulated:
    """The accelerator of this process."""

    def __init__(self, library: Path) -> None:
        torch.utils.rename_privateuse1_backend("emulated")
        torch.ops.load_library(library)
        self._c = ctypes.CDLL(str(library))
        self._c.emulated_set_capacity.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_bool)
        self._c.emulated_set_pinned_capacity.argtypes = (ctypes.c_int64,)
        self._c.emulated_set_order.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self._c.emulated_rng_state.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_bool)
        torch._register_device_module("emulated", self._module())
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

    def set_order(self, order: Order, seed: int = 0) -> None:
        self._c.emulated_set_order(order, seed)

    def set_capacity(self, nbytes: int = PLENTY_NBYTES, *, device: int = 0, of_segments: bool = False) -> None:
        """What the device has; `of_segments`: of whole segments, free or not, and otherwise of what is in use."""
        self._c.emulated_set_capacity(device, nbytes, of_segments)

    def set_pinned_capacity(self, nbytes: int = 2**40) -> None:
        """How much host memory can be pinned."""
        self._c.emulated_set_pinned_capacity(nbytes)

    def in_use_nbytes(self, device: int = 0) -> int:
        """Memory that cannot be had: held, or freed while a stream may still read it."""
        return torch.accelerator.memory_stats(device)["active_bytes.all.current"]

    def highest_in_use_nbytes(self, device: int = 0) -> int:
        return torch.accelerator.memory_stats(device)["active_bytes.all.peak"]

    def in_pieces_nbytes(self, device: int = 0) -> int:
        """Memory that is free in segments that are in use in part."""
        return torch.accelerator.memory_stats(device)["inactive_split_bytes.all.current"]

    def _index(self, device: Any = None) -> int:
        index = device if isinstance(device, int) or device is None else torch.device(device).index
        return int(self._c.emulated_current_device()) if index is None else index

    def _get_rng_state(self, device: Any = None) -> torch.Tensor:
        state = (ctypes.c_uint64 * 2)()
        self._c.emulated_rng_state(self._index(device), state, False)
        return torch.tensor(list(bytes(state)), dtype=torch.uint8)

    def _set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self._c.emulated_rng_state(self._index(device), bytes(state.tolist()), True)

    def _seed_all(self, seed: int) -> None:
        for device in range(2):
            self._c.emulated_rng_state(device, struct.pack("QQ", seed % 2**64, 0), True)

    @contextlib.contextmanager
    def _on_device(self, device: Any) -> Any:
        before = self._index()
        self._c.emulated_set_device(self._index(device))
        yield
        self._c.emulated_set_device(before)

    def _module(self) -> types.ModuleType:
        """What torch expects of the module of a device type."""
        module = types.ModuleType("torch.emulated")
        vars(module).update(
            is_available=lambda: True,
            is_initialized=lambda: True,
            _is_in_bad_fork=lambda: False,
            _lazy_init=lambda: None,
            device_count=lambda: 2,
            current_device=self._index,
            set_device=lambda device: self._c.emulated_set_device(self._index(device)),
            device=self._on_device,
            manual_seed=lambda seed: self._set_rng_state(torch.frombuffer(struct.pack("QQ", seed % 2**64, 0), dtype=torch.uint8)),
            manual_seed_all=self._seed_all,
            get_rng_state=self._get_rng_state,
            set_rng_state=self._set_rng_state,
            get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        )
        return module
