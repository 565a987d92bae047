"""What every test has: a cache folder of its own, the same kernels on every CPU, and property tests without a deadline."""

import gc
import hashlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from warm_python import start_warm_python

from tensorferry.engines.memory_cap import EXACT_MALLOC

# by itself TensorFlow decides by the CPU, and the two kinds of kernels and of allocator would be tested by chance
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# several processes share the cores: a thread of OpenMP that waits for work sleeps, instead of keeping the others from theirs
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# a shell has what it starts in the background ignore Ctrl-C, and so would the processes that tests start and interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a loaded machine is no reason to fail; what is too slow ends at pytest's own time-out
settings.register_profile("ferry", deadline=None, print_blob=True)
settings.load_profile("ferry")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the most slow tests come first, so that the last minutes keep every process busy."""
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[item.path])


def pytest_collection_finish() -> None:
    """The frameworks' 600,000 objects stay for good: no engine that looks for tensors need go through them, step after step."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured machines are remembered for this run only, in no one's home; child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: those of a small network only wait for each other, on a busy machine for long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def warm_python(testrun_uid: str) -> Callable[..., str]:
    """Gives the path of a Python that has imported these modules, in an environment with these variables; one for all tests."""
    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()

    def start(*modules: str, **environment: str) -> str:
        kind = hashlib.sha256(repr((testrun_uid, modules, sorted(environment.items()))).encode()).hexdigest()[:16]
        # not pytest's own folder: the address of a socket is at most 107 characters long
        return start_warm_python(Path(tempfile.gettempdir(), f"warm-{kind}"), modules, environment, lives_with=session)

    return start


@pytest.fixture(scope="session")
def torch_python(warm_python: Callable[..., str]) -> str:
    """A Python that has torch, for small programs: the threads of a toy only wait for each other."""
    return warm_python("torch._dynamo", "tensorferry.engines.torch", "tensorferry.train.start", OMP_NUM_THREADS="1")


@pytest.fixture(scope="session")
def keras_python(warm_python: Callable[..., str]) -> Callable[[str], str]:
    """Gives a Python that has Keras on a back end, which is chosen once a process, for small programs."""

    def start(backend: str) -> str:
        # as `EXACT_MALLOC`: a program that caps its memory has malloc return what is freed
        return warm_python(
            "keras",
            "tensorferry.engines.keras",
            "tensorferry.train.start",
            KERAS_BACKEND=backend,
            TF_CPP_MIN_LOG_LEVEL="3",
            OMP_NUM_THREADS="1",
            **EXACT_MALLOC,
        )

    return start
