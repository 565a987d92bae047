"""Into the folder that a server reads: a new version of a model, there whole or not at all, and never over an old one.

A version is written beside the models, loaded again from there and compared with the original once more, flushed to disk, and
only then renamed into its place. All versions of a model share its `config.pbtxt`, as Triton and our server read it.
"""

import contextlib
import itertools
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from tensorferry.errors import BadModel
from tensorferry.files import force, write_whole
from tensorferry.machine import count_cores
from tensorferry.optimization.candidates import Candidate
from tensorferry.serve.core.config import CONFIG_NAME, read_config
from tensorferry.serve.core.folder import list_versions
from tensorferry.serve.core.spec import datatype_number
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.runtimes.runtime import Signature, TensorSignature

LABELS_NAME = "labels.txt"
_MIN_MAX_BATCH = 8
_OWN_FIELDS = ("name", "backend", "platform", "input", "output", "max_batch_size", "instance_group", "optimization")
Fill = Callable[[Path], None]  # writes a version's files into an empty folder


@dataclass(frozen=True)
class NewVersion:
    """One model to write: its configuration, and what fills its version's folder."""

    config: Any
    fill: Fill
    labels: tuple[str, ...] = ()


def read_target(path: Path) -> tuple[Path, str, int | None]:
    """The repository, the name and the version that "models/reviews/1" or "models/reviews" means.

    >>> read_target(Path("models/reviews/2"))
    (PosixPath('models'), 'reviews', 2)
    """
    is_version = path.name.isascii() and path.name.isdecimal()
    model = path.parent if is_version else path
    if not model.name or model.name.startswith(".") or (is_version and path.name.startswith("0")):
        raise BadModel(f"cannot save to {str(path)!r}; write repository/name, or repository/name/version as in models/reviews/1")
    return model.parent, model.name, int(path.name) if is_version else None


def _next_version(root: Path, names: list[str]) -> int:
    """The lowest number above every version of these models."""
    found = [version for name in names if (root / name).is_dir() for version in list_versions(root / name)]
    return max(found, default=0) + 1


def write_versions(root: Path, new_versions: list[NewVersion], version: int | None) -> Path:
    """Write a version of each model, in order, and return the folder of the last one's; raises BadModel, nothing half-written."""
    names = [new.config.name for new in new_versions]
    try:
        root.mkdir(parents=True, exist_ok=True)
        version = version or _next_version(root, names)
        _refuse_existing(root, names, version)
        with _beside(root) as part:
            configs = [_merge_config(root, new) for new in new_versions]
            for new, config in zip(new_versions, configs, strict=True):
                _write(part / new.config.name, new, config, version)
            for name in names:
                _move(part / name, root / name, version)
            force(root)
    except OSError as error:
        raise BadModel(f"cannot write to {str(root)!r}: {error.strerror or error}") from error
    return root / names[-1] / str(version)


def _refuse_existing(root: Path, names: list[str], version: int) -> None:
    for name in names:
        if (root / name / str(version)).exists():
            free = _next_version(root, names)
            raise BadModel(
                f"version {version} of '{name}' is already in {str(root)!r}; versions are never written over: take {free}"
            )


def _merge_config(root: Path, new: NewVersion) -> Any:
    _refuse_other_labels(root / new.config.name / LABELS_NAME, new)
    if not (root / new.config.name / CONFIG_NAME).is_file():
        return new.config
    return _update_config(read_config(root / new.config.name), new.config)


def _refuse_other_labels(path: Path, new: NewVersion) -> None:
    """All versions share one file of labels, so the older ones would get other labels, too."""
    if not new.labels or not path.is_file():
        return
    before = path.read_text("utf-8").splitlines()
    differing = next((pair for pair in itertools.zip_longest(before, new.labels) if pair[0] != pair[1]), None)
    if differing:
        raise BadModel(
            f"the model '{new.config.name}' that is there has other labels ({differing[0]!r} for {differing[1]!r}), and its "
            "versions share one file of them; save this one under another name"
        )


@contextlib.contextmanager
def _beside(root: Path) -> Iterator[Path]:
    """A folder beside the models that no server looks into, gone afterwards."""
    part = root / f".ferry-{secrets.token_hex(8)}"
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, new: NewVersion, config: Any, version: int) -> None:
    (folder / str(version)).mkdir(parents=True)
    if new.labels:
        (folder / LABELS_NAME).write_text("".join(f"{label}\n" for label in new.labels), "utf-8")
    (folder / CONFIG_NAME).write_text(_format_config(config), "utf-8")
    new.fill(folder / str(version))
    for path in (folder, *folder.rglob("*")):
        force(path)


def _move(source: Path, target: Path, version: int) -> None:
    """Rename a model's folder into place, or its new version into the folder that is there, the configuration last."""
    if not target.exists():
        source.rename(target)
        return
    (source / str(version)).rename(target / str(version))
    for name in (LABELS_NAME, CONFIG_NAME):
        if (source / name).is_file():
            write_whole(target / name, (source / name).read_text("utf-8"))
    force(target)


def make_candidate_config(name: str, candidate: Candidate, signature: Signature, *, batch: int, is_batched: bool) -> Any:
    """The configuration that serves a candidate; `batch` is the number of rows that gave the best throughput."""
    config = make_config(name, candidate.backend, signature, max(_MIN_MAX_BATCH, batch) if is_batched else 0)
    set_parameters(config, candidate.parameters)
    if candidate.accelerator:
        config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_GPU)
        if candidate.accelerator == "tensorrt":
            config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    else:
        # a candidate that is fastest with few threads leaves cores for others of its kind
        config.instance_group.add(count=max(1, count_cores() // candidate.num_threads), kind=pb.ModelInstanceGroup.KIND_CPU)
    return config


def make_config(name: str, backend: str, signature: Signature, max_batch_size: int) -> Any:
    """The configuration of any model: its name, what runs it, what it takes and gives."""
    config = pb.ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    if backend == "ensemble":
        config.backend, config.platform = "", "ensemble"
    _add_tensors(config.input, signature.inputs, max_batch_size > 0)
    _add_tensors(config.output, signature.outputs, max_batch_size > 0)
    if max_batch_size and backend != "ensemble":
        config.dynamic_batching.SetInParent()  # what queued while an instance was busy goes together; nothing waits
    return config


def _add_tensors(declared: Any, tensors: tuple[TensorSignature, ...], is_batched: bool) -> None:
    """Declare inputs or outputs."""
    for tensor in tensors:
        added = declared.add(name=tensor.name, data_type=datatype_number(tensor.datatype))
        added.dims.extend(tensor.shape[1:] if is_batched else tensor.shape)


def set_parameters(config: Any, parameters: Mapping[str, str]) -> None:
    """Set a configuration's parameters."""
    for key, value in parameters.items():
        config.parameters[key].string_value = value


def _update_config(old: Any, new: Any) -> Any:
    """What a newer version's configuration is: `new`, with what people added to the old one (versions, queues, warm-up)."""
    for word in ("input", "output"):
        before, after = ([(each.name, each.data_type, *each.dims) for each in getattr(config, word)] for config in (old, new))
        if before and sorted(before) != sorted(after):
            names = ", ".join(each.name for each in getattr(old, word))
            raise BadModel(
                f"the model '{new.name}' that is there has other {word}s ({names}), so its clients would break; "
                "save this one under another name"
            )
    merged = pb.ModelConfig()
    merged.CopyFrom(old)
    for field in (*_OWN_FIELDS, "parameters"):
        merged.ClearField(field)
    if new.HasField("ensemble_scheduling"):
        merged.ClearField("ensemble_scheduling")
    merged.MergeFrom(new)
    return merged


def _format_config(config: Any) -> str:
    """The text of `config.pbtxt`."""
    return text_format.MessageToString(config)
