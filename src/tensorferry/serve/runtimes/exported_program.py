"""Programs of `torch.export` (`.pt2`), also those of people we do not trust.

`torch.export.load` unpickles whatever a file holds and loads the shared libraries of compiled packages. So nothing of an
untrusted file reaches it as it came: every member is read once, vetted, and written to an archive in memory, and torch loads
that one. What is not needed is left out; what is not known is refused.
"""

import io
import json
import math
import os
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.program_graph import vet_loaded
from tensorferry.serve.runtimes.program_text import check_word, vet_graph, vet_words
from tensorferry.serve.runtimes.trust import Untrusted, refuse

_MAX_MEMBERS = 2**17
_MAX_JSON_NBYTES = 2**28
_RAW = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_PICKLED = re.compile(r"data/(sample_inputs|weights|constants)/model\.pt")  # weights and constants: files of older torch
_TABLE = re.compile(r"data/(weights/model_weights|constants/model_constants)_config\.json")
_MARK = re.compile(r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)")
_LEFT_OUT = re.compile(r"extra/.*|.*/")  # texts that the user adds, which are not read here; folders
_VALUES = (int, float, complex, str, torch.dtype, torch.device, type(None))


def load_program(path: Path, trust: bool) -> Any:
    """The exported program of a file; without trust raises BadModel for one that holds more than tensors and their graph."""
    if trust:
        return torch.export.load(path)
    program = torch.export.load(io.BytesIO(vet_program(path)))
    try:
        vet_loaded(program)
    except Untrusted as found:
        raise refuse(path, found) from None
    return program


def vet_program(path: Path) -> bytes:
    """The file's program as a new archive, in which nothing can run."""
    target = io.BytesIO()
    try:
        with open(path, "rb") as file, zipfile.ZipFile(target, "w") as copy:
            _copy_members(file, copy)
    except Untrusted as found:
        raise refuse(path, found) from None
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, OSError, RecursionError, NotImplementedError) as error:
        raise BadModel(f"PyTorch cannot load {path.name}: it is damaged, or no program of torch.export ({error})") from None
    return target.getvalue()


def _copy_members(file: BinaryIO, copy: zipfile.ZipFile) -> None:
    members = _list_members(file)
    sizes: dict[str, int] = {}
    tables: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(file) as source:
        for name, info in members.items():
            if _LEFT_OUT.fullmatch(name):
                continue
            data = source.read(info)
            if _RAW.fullmatch(name):
                sizes[name] = len(data)
            elif _PICKLED.fullmatch(name):
                data = _copy_pickle(name, data)
            elif _TABLE.fullmatch(name):
                tables[name.rpartition("/")[0]] = _vet_table(name, data)
            elif name == "models/model.json":
                data = vet_graph(_check_size(name, data))
            elif _MARK.fullmatch(name):
                check_word(data.decode().strip())
            else:
                raise Untrusted(f"{name[:80]!r}, which is no part of a plain exported program")
            copy.writestr(f"archive/{name}", data)
    for folder, table in tables.items():
        _check_sizes(folder, table, sizes)


def _list_members(file: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    """The members by name, without the archive's folder; together no larger than the file, so that nothing can swell."""
    with zipfile.ZipFile(file) as source:
        infos = source.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise Untrusted(f"{len(infos):,} members")
    if "serialized_exported_program.json" in source.namelist():
        raise Untrusted("pickles, as torch wrote them up to 2.7")
    roots = {info.filename.partition("/")[0] for info in infos}
    members = {info.filename.partition("/")[2]: info for info in infos}
    if len(roots) != 1 or len(members) != len(infos) or "models/model.json" not in members:
        raise zipfile.BadZipFile("expected one program, in one folder, every member once")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise Untrusted(f"the compressed or encrypted member {info.filename[:80]!r}")
    if sum(info.file_size for info in infos) > os.fstat(file.fileno()).st_size:
        raise Untrusted("members that overlap")
    return members


def _copy_pickle(name: str, data: bytes) -> bytes:
    """Tensors as torch itself writes them, from a pickle that holds nothing else."""
    if not data:
        return data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            if any(info.compress_type != zipfile.ZIP_STORED for info in inner.infolist()):
                raise Untrusted(f"a compressed pickle in {name}")
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # what it may not load, and what is damaged, look alike
        raise Untrusted(f"a pickle of more than tensors ({name})") from None
    _check_value(value, name)
    target = io.BytesIO()
    torch.save(value, target)
    return target.getvalue()


def _check_value(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            check_word(str(key))  # keys of inputs become part of the guards, which are source code
            _check_value(item, name)
    elif isinstance(value, tuple | list):
        for item in value:
            _check_value(item, name)
    elif isinstance(value, str):
        check_word(value)
    elif type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, _VALUES):
        raise Untrusted(f"a {type(value).__name__} ({name})")


def _vet_table(name: str, data: bytes) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_check_size(name, data))["config"]
    vet_words(table)
    for entry in table.values():
        if entry["use_pickle"] or not _RAW.fullmatch(f"{name.rpartition('/')[0]}/{entry['path_name']}"):
            raise Untrusted(f"the pickle {entry['path_name']} ({name})")
    return table


def _check_sizes(folder: str, table: dict[str, Any], sizes: dict[str, int]) -> None:
    # torch fills what has no bytes with zeros, as many as the table claims
    for entry in table.values():
        if not sizes[f"{folder}/{entry['path_name']}"] and math.prod(size["as_int"] for size in entry["tensor_meta"]["sizes"]):
            raise ValueError(f"{entry['path_name']} has no bytes")


def _check_size(name: str, data: bytes) -> bytes:
    if len(data) > _MAX_JSON_NBYTES:
        raise Untrusted(f"{len(data):,} bytes of {name}")
    return data
