"""Keras files (`.keras`), vetted before Keras reads them.

A file names the classes and functions that its model is made of, and any function of Keras can stand where an activation does:
also one that fetches, opens or unpickles files. Keras refuses what it knows to be dangerous; here only what models are made of
is let in. Layers that carry code, or that load another model or a file from outside, need trust.
"""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.trust import Untrusted, refuse
from tensorferry.text import clip

_MAX_JSON_NBYTES = 2**26
_MEMBERS = frozenset(("config.json", "metadata.json", "model.weights.h5", "model.weights.npz"))
_KINDS = (
    "activations",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "ops",
    "optimizers",
    "quantizers",
    "regularizers",
)
_PARTS = (*_KINDS, "dtype_policies", "random")
_ROOT = frozenset(
    ("DTypePolicy", "DTypePolicyMap", "Functional", "Model", "Sequential", "SeedGenerator")
)  # of `keras`, `keras.models`
_CARRIERS = frozenset(("FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper"))
_PLAIN = frozenset(("__ellipsis__", "__keras_tensor__", "__numpy__", "__slice__", "__tensor__"))
_PATHS = frozenset(("filepath", "idf_weights", "vocabulary"))  # of layers that would read a file where these are texts


def vet_keras(path: Path) -> None:
    """Raise BadModel for a file that could run code, or read files, when it is loaded or run."""
    try:
        if path.suffix in (".h5", ".hdf5"):
            raise Untrusted("a model in the older HDF5 format")
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            _check_members(archive, os.fstat(file.fileno()).st_size)
            _check_object(json.loads(archive.read("config.json")))
            if "model.weights.h5" in archive.namelist():
                _check_weights(archive.read("model.weights.h5"))
    except Untrusted as found:
        raise refuse(path, found) from None
    except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError, RecursionError, NotImplementedError) as error:
        raise BadModel(f"Keras cannot load {path.name}: it is damaged, or no .keras file ({error})") from None


def _check_members(archive: zipfile.ZipFile, nbytes: int) -> None:
    infos = archive.infolist()
    for info in infos:
        is_asset = info.filename.startswith("assets/") and ".." not in info.filename.split("/")
        if info.filename not in _MEMBERS and not is_asset:
            raise Untrusted(f"{info.filename[:80]!r}, which is no part of a Keras file")
        if info.compress_type != zipfile.ZIP_STORED:
            raise Untrusted(f"the compressed member {info.filename[:80]!r}")
    if sum(info.file_size for info in infos) > nbytes or len({info.filename for info in infos}) < len(infos):
        raise Untrusted("members that overlap")
    if archive.getinfo("config.json").file_size > _MAX_JSON_NBYTES:
        raise Untrusted(f"more than {_MAX_JSON_NBYTES:,} bytes of config.json")


def _check_object(value: Any) -> None:
    """Raise Untrusted unless all that a configuration names is what models are made of."""
    if isinstance(value, list):
        for item in value:
            _check_object(item)
    if not isinstance(value, dict):
        return
    if "class_name" in value:
        _check_class(value.get("module"), value["class_name"], value.get("config"))
    for key, item in value.items():
        if key in _PATHS and isinstance(item, str):
            raise Untrusted(f"a layer that reads the file {clip(item, 80)!r}")
        _check_object(item)


def _check_class(module: object, name: object, config: object) -> None:
    package, _, rest = str(module).partition(".")
    if name == "function":  # whose name is the configuration; the modules inside of Keras hold more than is offered
        name = config
    else:
        rest = rest.removeprefix("src.")
    part = rest.partition(".")[0]
    if module is None or module == "builtins":
        is_known = isinstance(name, str) and (name in _PLAIN or (module == "builtins" and name.isidentifier()))
    elif name in _CARRIERS:
        raise Untrusted(f"a {name} layer")
    else:
        is_known = package == "keras" and (part in _PARTS or (part in ("", "models") and name in _ROOT))
    if not is_known:
        raise Untrusted(f"the name {f'{module}.{name}'[:80]!r}, which is no layer or function for models")


def _check_weights(data: bytes) -> None:
    import h5py

    def check(group: Any) -> None:
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise Untrusted(f"weights that are linked from elsewhere ({name!r})")
            item = group[name]
            if isinstance(item, h5py.Group):
                check(item)
            elif item.external or item.is_virtual:
                raise Untrusted(f"weights from another file ({name!r})")

    with h5py.File(io.BytesIO(data), "r") as file:
        check(file)
