"""Weights that stay in a safetensors file until a training uses them, and weights written to one a tensor at a time.

A model that memory cannot hold is built on torch's "meta" device, where tensors have no bytes. `load_onto_tier` notes for each of
its tensors where in the file its bytes are. Only inside `large_model` do they come into memory, a window of them at a time; what
training does not change is read from the file itself, and never written.

The format: eight bytes with the length of a JSON header, the header (name -> dtype, shape, first byte and last), the bytes.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from tensorferry.engines.torch.compat import saved_buffers, tensor_tables
from tensorferry.engines.torch.device import block_bytes
from tensorferry.errors import BadModel, BadUse
from tensorferry.messages import did_you_mean
from tensorferry.tiers import FileSlice, SlicedFile
from tensorferry.units import format_bytes

_MAX_HEADER_NBYTES = 100 * 2**20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SOURCE = "ferry_source"  # the attribute of a tensor without bytes that says where they are


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    source: FileSlice


def load_onto_tier(model: torch.nn.Module, path: str | Path) -> torch.nn.Module:
    """Give a model on the "meta" device the weights of a safetensors file, without reading them; returns the model.

    They come into memory inside `large_model` alone, as far as its budget has room, so the model may be larger than memory. Make
    the optimizer inside: there the parameters are others.

        with torch.device("meta"):
            model = Transformer()
        ferry.load_onto_tier(model, "weights.safetensors")
        with ferry.large_model(model, budget="2GiB") as big:
            optimizer = torch.optim.AdamW(model.parameters())
            ...
            big.save_weights("trained.safetensors")
    """
    entries = _read_entries(Path(path))
    aliases: dict[int, list[str]] = {}  # of a weight that several layers use, a file may have any one
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    for name, tensor in _named_tensors(model):
        if tensor.device.type != "meta":
            raise BadModel(f"{name!r} is in memory already; build the model inside `with torch.device('meta'):`")
        entry = next((entries[alias] for alias in aliases.get(id(tensor), [name]) if alias in entries), None)
        if entry is None:
            raise BadModel(f"{str(path)!r} has no tensor {name!r}{did_you_mean(name, entries)}")
        if (entry.shape, entry.dtype) != (tuple(tensor.shape), tensor.dtype):
            expected, found = f"{tensor.dtype} {list(tensor.shape)}", f"{entry.dtype} {list(entry.shape)}"
            raise BadModel(f"{name!r} is {expected} in the model and {found} in {str(path)!r}")
        setattr(tensor, _SOURCE, entry.source)
    return model


def place(model: torch.nn.Module, min_nbytes: int) -> dict[torch.nn.Parameter, FileSlice]:
    """Put tensors of the CPU in place of those without bytes; returns where the bytes of large ones are, which are not read."""
    empty: dict[torch.nn.Parameter, FileSlice] = {}
    placed: dict[int, torch.Tensor] = {}
    for module, table, name, tensor in _held_tensors(model):
        source = getattr(tensor, _SOURCE, None)
        if source is None:
            if tensor.device.type == "meta":
                raise BadUse(f"{name!r} of {type(module).__name__} has no bytes; call ferry.load_onto_tier(model, FILE) before")
            continue
        if id(tensor) not in placed:
            made = torch.empty(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            placed[id(tensor)] = torch.nn.Parameter(made, tensor.requires_grad) if is_parameter else made
            if is_parameter and source.nbytes >= min_nbytes:
                empty[placed[id(tensor)]] = source  # type: ignore[index]
            else:
                source.read_into(_bytes_of(made))
        table[name] = placed[id(tensor)]
    return empty


def take_away(model: torch.nn.Module, sources: dict[int, FileSlice]) -> None:
    """Put tensors without bytes in place of those, by id, whose bytes a file has."""
    taken: dict[int, torch.nn.Parameter] = {}
    for _, table, name, tensor in list(_held_tensors(model)):
        if id(tensor) in sources:
            if id(tensor) not in taken:
                taken[id(tensor)] = torch.nn.Parameter(torch.empty_like(tensor, device="meta"), tensor.requires_grad)
                setattr(taken[id(tensor)], _SOURCE, sources[id(tensor)])
            table[name] = taken[id(tensor)]


def write_weights(
    model: torch.nn.Module, path: Path, borrow: Callable[[torch.Tensor], None], note: Callable[[torch.Tensor, FileSlice], None]
) -> None:
    """Write parameters and buffers to a safetensors file, which is there whole or not at all.

    `borrow` is asked to have a tensor's bytes in memory, one after another; `note` is told where in the file they are now.
    """
    tensors = dict(_named_tensors(model))
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise BadModel(f"{name!r} is {tensor.dtype}, which a safetensors file cannot hold")
        nbytes = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + nbytes]}
        end += nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors.values():
                borrow(tensor)
                whole = tensor.detach().contiguous()
                file.write(_bytes_of(whole))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    written = SlicedFile(path)
    for name, tensor in tensors.items():
        first, last = header[name]["data_offsets"]
        if tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() in (0, last - first):
            note(tensor, FileSlice(written, 8 + len(head) + first, last - first))


def _read_entries(path: Path) -> dict[str, _Entry]:
    try:
        file = SlicedFile(path)
        head_nbytes = int.from_bytes(file.read(0, 8), "little")
        if not 0 < head_nbytes <= min(_MAX_HEADER_NBYTES, file.nbytes - 8):
            raise BadModel(f"{str(path)!r} is no safetensors file: its header would have {head_nbytes} bytes")
        header = json.loads(file.read(8, head_nbytes))
        return {name: _read_entry(entry, file, 8 + head_nbytes) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise BadModel(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"{str(path)!r} is no safetensors file, or damaged: {error}") from error


def _read_entry(entry: dict[str, Any], file: SlicedFile, start: int) -> _Entry:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(int(number) for number in entry["shape"])
    first, last = (int(number) for number in entry["data_offsets"])
    nbytes, room_nbytes = prod(shape) * dtype.itemsize, file.nbytes - start
    if min(shape, default=0) < 0 or not 0 <= first <= last <= room_nbytes or last - first != nbytes:
        raise ValueError(f"a tensor of {format_bytes(nbytes)} is said to be in bytes {first} to {last} of {room_nbytes}")
    return _Entry(dtype, shape, FileSlice(file, start + first, nbytes))


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a file of the model's weights has: parameters once each, and the buffers that are saved."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        yield from ((f"{prefix}.{name}".lstrip("."), buffer) for name, buffer in saved_buffers(module))


def _held_tensors(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, dict[str, Any], str, torch.Tensor]]:
    for module in model.modules():
        for table in tensor_tables(module):
            for name, tensor in list(table.items()):
                if tensor is not None:
                    yield module, table, name, tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    start = tensor.storage_offset() * tensor.element_size()
    return block_bytes(tensor.untyped_storage())[start : start + tensor.numel() * tensor.element_size()]
