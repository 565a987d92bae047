"""Candidates: a file in a runtime, at a precision, with so many threads; and what each of them reached.

All of a candidate can be said in a model's configuration, so what is measured is what will serve.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tensorferry.machine import count_cores
from tensorferry.optimization.agreement import Comparison
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.measure import Speed
from tensorferry.serve.runtimes.runtime import LoadOptions, Runtime, Signature
from tensorferry.serve.runtimes.table import load_runtime

_TITLES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
}
_THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}
# what is not quantised computes in fp32
_OPENVINO_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32", "int4": "f32"}
_ACCELERATORS = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}


@dataclass(frozen=True)
class Candidate:
    """One way to serve the model; `parameters` go into its configuration."""

    backend: str
    precision: str
    path: Path
    num_threads: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""  # where a backend and precision has several files
    accelerator: str = ""  # "cuda" or "tensorrt"; empty: the CPU
    trust: bool = False  # load it even if it may carry code

    @property
    def title(self) -> str:
        """For people, as "OpenVINO fp32, 2 threads"."""
        where = f" on {self.accelerator}" if self.accelerator else ""
        variant = f" ({self.variant})" if self.variant else ""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{_TITLES[self.backend]} {self.precision}{variant}{where}, {threads}"

    @property
    def nbytes(self) -> int:
        """What its files take on disk."""
        folder = self.path.parent
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def load(self, signature: Signature) -> Runtime:
        """Its runtime, as the server would load it with a configuration that has the names of `signature`."""
        options = LoadOptions(
            self.path,
            self.num_threads,
            device="gpu" if self.accelerator else "cpu",
            trust=self.trust,
            parameters=self.parameters,
            input_names=tuple(tensor.name for tensor in signature.inputs),
            output_names=tuple(tensor.name for tensor in signature.outputs),
        )
        return load_runtime(self.backend, options)


def make_candidate(
    backend: str,
    precision: str,
    path: Path,
    num_threads: int,
    variant: str = "",
    accelerator: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Candidate:
    """A candidate with the parameters that make its runtime do just that, and `settings` among them."""
    parameters = {_THREADS[backend]: str(num_threads)} if backend in _THREADS else {}
    parameters |= settings
    if backend == "openvino":
        # without a hint OpenVINO takes bf16 wherever the CPU has it
        parameters["INFERENCE_PRECISION_HINT"] = _OPENVINO_HINTS[precision]
    if accelerator == "tensorrt":
        parameters["gpu_execution_accelerator"] = "tensorrt"
    return Candidate(backend, precision, path, num_threads, parameters, variant, accelerator)


def list_variants(
    backend: str, precision: str, path: Path, variant: str, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Candidate]:
    """The candidates of one file, the most promising number of threads first, and those on a GPU where there is one."""
    if backend == "onnxruntime":
        for accelerator in find_accelerators():
            yield make_candidate(backend, precision, path, 1, variant, accelerator, settings)
    for num_threads in thread_counts(count_cores()):
        yield make_candidate(backend, precision, path, num_threads, variant, settings=settings)


def thread_counts(num_cores: int) -> list[int]:
    """Which numbers of threads are tried: all cores, half of them (two threads may share one), one.

    >>> thread_counts(8)
    [8, 4, 1]
    """
    return list(dict.fromkeys((num_cores, max(1, num_cores // 2), 1)))


@functools.cache
def has_bf16() -> bool:
    """Whether the CPU computes in bf16 by itself; elsewhere it would be slower than fp32."""
    from tensorferry.serve.runtimes.openvino import open_core

    return "BF16" in open_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@functools.cache
def find_accelerators() -> tuple[str, ...]:
    """The accelerators that this onnxruntime was built for and that are there."""
    import onnxruntime as ort

    if not Path("/dev/nvidia0").exists():
        return ()
    return tuple(word for provider, word in _ACCELERATORS.items() if provider in ort.get_available_providers())


@dataclass(frozen=True)
class CandidateResult:
    """What a candidate reached, or why a file could not be made into one."""

    title: str
    precision: str
    route: str  # how its file was made
    verdict: str  # why it won or lost
    comparison: Comparison | None = None
    speed: Speed | None = None
    nbytes: int = 0
    candidate: Candidate | None = None  # None: there is nothing to serve
    kept: tuple[str, ...] = ()  # layers of an int8 file that stay in fp32

    @property
    def passed(self) -> bool:
        """Whether it gives the original's answers."""
        return self.candidate is not None and self.comparison is not None and not self.comparison.fault


@dataclass(frozen=True)
class TriedFile:
    """A file that gave answers: how long one row took at a glance, and how it compared."""

    title: str
    precision: str
    seconds: float
    comparison: Comparison
    passed: bool
    num_kept: int = 0  # layers of an int8 file that stay in fp32


@dataclass(frozen=True)
class SearchResult:
    """What a search found: every candidate, and the one that was chosen."""

    model: str
    framework: str
    chosen: CandidateResult
    candidates: tuple[CandidateResult, ...]  # the chosen one among them, the fastest first
    baseline: CandidateResult  # the original, measured in the same way
    judge: str
    num_samples: int
    gate: AnswerGate
    notes: tuple[str, ...] = ()
    tried: tuple[TriedFile, ...] = ()  # every file, those that did not pass too, in the order of the search

    @property
    def speedup(self) -> float:
        """How many times faster than the original the chosen candidate answers one row."""
        assert self.baseline.speed is not None
        speed = self.chosen.speed or self.baseline.speed
        return self.baseline.speed.latency_seconds / speed.latency_seconds
