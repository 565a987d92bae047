"""Which runtime runs which file. A new runtime is a row here and a file beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.extras import missing_extra
from tensorferry.serve.runtimes.runtime import LoadOptions, Runtime


@dataclass(frozen=True, slots=True)
class Backend:
    """One runtime: where its code is, which files it runs, and whether it lives in a process of its own.

    A framework that never gives its memory back, holds the interpreter lock or may crash belongs in a process.
    """

    module: str
    filenames: tuple[str, ...]
    platform: str
    in_process: bool
    extra: str
    parameters: frozenset[str] = frozenset()  # of a configuration, that it understands and that reach no file


OWN_PARAMETERS = frozenset({"isolation", "padding", "batching", "max_sequences"})  # those that this server reads itself
_ONNXRUNTIME = frozenset(("intra_op_thread_count", "inter_op_thread_count", "session.intra_op.allow_spinning"))
# a property may also name a folder to write a cache to, or a file to read weights from
_OPENVINO = frozenset(
    (
        *("CPU_DENORMALS_OPTIMIZATION", "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE", "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
        *("ENABLE_CPU_PINNING", "ENABLE_CPU_RESERVATION", "ENABLE_HYPER_THREADING", "ENABLE_MMAP", "ENABLE_TENSOR_PARALLEL"),
        *("EXECUTION_MODE_HINT", "INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", "KEY_CACHE_GROUP_SIZE"),
        *("KEY_CACHE_PRECISION", "KV_CACHE_PRECISION", "MODEL_DISTRIBUTION_POLICY", "MODEL_PRIORITY", "NUM_STREAMS"),
        *("PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS", "PERF_COUNT", "SCHEDULING_CORE_TYPE", "TBB_PARTITIONER"),
        *("VALUE_CACHE_GROUP_SIZE", "VALUE_CACHE_PRECISION"),
    )
)

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "onnxruntime": Backend("onnx", ("model.onnx",), "onnxruntime_onnx", False, "serve", _ONNXRUNTIME),
        "openvino": Backend("openvino", ("model.xml",), "openvino", False, "serve", _OPENVINO),
        "pytorch": Backend("torch", ("model.pt2", "model.pt"), "pytorch_libtorch", True, "torch"),
        "tensorflow": Backend(
            "tensorflow",
            ("model.savedmodel", "saved_model.pb"),
            "tensorflow_savedmodel",
            True,
            "tensorflow",
            frozenset(("signature",)),
        ),
        "keras": Backend("keras", ("model.keras",), "keras", True, "tensorflow"),
        "python": Backend("python", ("model.py",), "python", True, "serve", frozenset(("timeout_seconds",))),
        "transform": Backend("transform", ("transform.json",), "ferry_transform", False, "pipelines"),
        "remote": Backend("remote", ("remote.json",), "ferry_remote", False, "serve", frozenset(("timeout_seconds",))),
    }
)
_BY_PLATFORM = {backend.platform: name for name, backend in BACKENDS.items()}


def find_backend(config: Any, folder: Path) -> tuple[str, Path]:
    """The backend for a version's folder, and the file that it runs."""
    wanted = config.backend or _BY_PLATFORM.get(config.platform, "")
    if (config.backend and config.backend not in BACKENDS) or (config.platform and not wanted):
        known = ", ".join(BACKENDS)
        raise BadModel(f"model '{config.name}' asks for {config.backend or config.platform!r}; this server has {known}")
    if config.default_model_filename:
        return _find_named(wanted, config.name, folder, config.default_model_filename)
    for name, backend in BACKENDS.items():
        if wanted in ("", name):
            for filename in backend.filenames:
                if (folder / filename).exists():
                    # a SavedModel may also lie in the version's folder itself, as TensorFlow Serving has it
                    return name, folder if filename == "saved_model.pb" else folder / filename
    backends = [BACKENDS[wanted]] if wanted else BACKENDS.values()
    expected = ", ".join(filename for backend in backends for filename in backend.filenames)
    raise BadModel(f"no model file in {folder}; expected one of {expected}")


def load_runtime(backend: str, options: LoadOptions) -> Runtime:
    """The loaded model, in this process."""
    try:
        module = import_module(f"tensorferry.serve.runtimes.{BACKENDS[backend].module}")
        return module.load(options)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tensorferry"):
            raise
        raise missing_extra(options.path.name, error.name, BACKENDS[backend].extra) from error


def _find_named(wanted: str, name: str, folder: Path, filename: str) -> tuple[str, Path]:
    path = folder / filename
    if not path.resolve().is_relative_to(folder.resolve()) or not path.exists():
        raise BadModel(f"model '{name}' names the file {filename!r}, which is not in {folder}")
    if wanted:
        return wanted, path
    suffixes = {Path(known).suffix: backend for backend, row in BACKENDS.items() for known in row.filenames if known[0] == "m"}
    if path.suffix not in suffixes:
        raise BadModel(f"model '{name}' names the file {filename!r}; say its backend in the configuration")
    return suffixes[path.suffix], path
