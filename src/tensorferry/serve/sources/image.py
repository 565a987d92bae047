"""Models in a container registry: an image whose layers are tar archives, or an artifact whose layers are files.

    docker build, KServe's modelcars    models/NAME/1/model.onnx inside of the image; what is beside models/ is left alone
    oras push, one file a layer         net/1/model.onnx, the title of the layer
    oras push, a folder a layer         a tar archive whose members begin with the folder's name

The manifest names everything by its digest, so a look at the registry is one question for the digest of the tag. An image is one
thing: where a model's file is a link, or any name leaves the folder, all of it is refused.
"""

import gzip
import os
import platform
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tensorferry.serve.sources.registry import DIGEST, ImageName, ImageRegistry
from tensorferry.serve.sources.source import SourceChanged, SourceFailed, SourceFile
from tensorferry.serve.sources.tar import BadArchive, TarMember, list_members
from tensorferry.units import format_bytes

_TITLE = "org.opencontainers.image.title"
_UNPACK = "io.deis.oras.content.unpack"  # how oras marks a layer that was a folder
_ROOT = "models/"
_REMOVED, _REMOVED_ALL = ".wh.", ".wh..wh..opq"  # how a layer takes away what is below it
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_LAYERS = 1000
_MAX_MEMBERS = 200_000  # of a layer: an image has much that is no model
_MAX_CHARACTERS = 32 * 2**20  # of all names together, which are held in memory
_MAX_DEPTH = 64
_PIECE_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a manifest."""

    digest: str
    nbytes: int
    kind: str
    title: str
    is_folder: bool

    @property
    def is_file(self) -> bool:
        """Whether its bytes are one file, whatever type it claims: oras calls every file a tar archive."""
        return bool(self.title) and not self.is_folder


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Where the bytes of a file are: a part of a layer that was unpacked, or all of one that is still in the registry."""

    layer: Layer
    offset: int | None
    nbytes: int
    is_file: bool = True

    @property
    def etag(self) -> str:
        """A mark that changes with the content."""
        return self.layer.digest if self.offset is None else f"{self.layer.digest}@{self.offset}"


class ImageSource:
    """Files of an image or artifact. Layers that are archives are kept in a folder, unpacked, while the image has them."""

    def __init__(self, url: str, folder: Path, max_nbytes: int) -> None:
        self.url = url
        self.folder = folder
        self.max_nbytes = max_nbytes
        self.name = ImageName.read(url)
        self.registry = ImageRegistry(self.name)
        self.digest = ""
        self.parts: dict[str, LayerPart] = {}

    def check(self) -> None:
        """Raise SourceFailed where there is no such image, or it cannot be read; no layer is downloaded."""
        _, manifest = self._find_manifest()
        self._read_layers(manifest)

    def list_files(self) -> Iterator[SourceFile]:
        """Every file of the image; layers that were not here are downloaded to find out."""
        try:
            if not self.digest or self.registry.find_digest() != self.digest:
                self._look()
        except OSError as error:
            raise SourceFailed(f"cannot keep layers in {self.folder}: {error.strerror or error}") from None
        for path, part in self.parts.items():
            yield SourceFile(path, part.nbytes, part.etag)

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of a file."""
        part = self.parts.get(file.path)
        if part is None or part.etag != file.etag:
            raise SourceChanged(f"{file.path!r} is another one in {self.url} by now")
        if part.offset is None:
            yield from self.registry.read_blob(part.layer.digest, part.nbytes)
            return
        with self._path(part.layer).open("rb") as archive:
            archive.seek(part.offset)
            left = part.nbytes
            while left and (piece := archive.read(min(left, _PIECE_NBYTES))):
                left -= len(piece)
                yield piece

    # ---- the manifest ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        digest, manifest = self._find_manifest()
        layers = self._read_layers(manifest)
        parts = _choose(self._merge(layers), self.name.repository.rpartition("/")[2])
        for path, part in parts.items():
            if not part.is_file:
                raise SourceFailed(f"{path!r} of {self.url} is a link or a device; models must be files")
        self.digest, self.parts = digest, parts
        kept = {self._path(layer).name for layer in layers}
        for archive in self.folder.glob("*"):
            if archive.name not in kept:
                archive.unlink(missing_ok=True)

    def _find_manifest(self) -> tuple[str, dict[str, Any]]:
        """The digest of what the name stands for, and the manifest of the image for this machine."""
        digest, manifest = self.registry.read_manifest(self.name.reference)
        entries = manifest.get("manifests")
        if entries is None:
            return digest, manifest
        chosen = _choose_platform(entries)
        if chosen is None:
            raise SourceFailed(f"{self.url} has no image for {_find_machine()}")
        return digest, self.registry.read_manifest(chosen)[1]

    def _read_layers(self, manifest: dict[str, Any]) -> list[Layer]:
        entries = manifest.get("layers")
        if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_LAYERS:
            raise SourceFailed(f"the manifest of {self.url} has no list of 1 to {_MAX_LAYERS} layers")
        layers = [_read_layer(entry) for entry in entries]
        found = [layer for layer in layers if layer is not None]
        if len(found) < len(entries):
            raise SourceFailed(f"a layer of {self.url} has no sha256 digest, no size or no type")
        nbytes = sum(layer.nbytes for layer in found)
        if nbytes > self.max_nbytes:
            raise SourceFailed(
                f"the layers of {self.url} take {format_bytes(nbytes)}; --source-size is {format_bytes(self.max_nbytes)}"
            )
        return found

    # ---- the layers --------------------------------------------------------------------------------------------------

    def _merge(self, layers: list[Layer]) -> dict[str, LayerPart]:
        """What all layers hold together: of two with one name the later counts."""
        merged: dict[str, LayerPart] = {}
        room, num_characters = self.max_nbytes, 0
        for layer in layers:
            if layer.is_file:
                merged[self._check(layer.title)] = LayerPart(layer, None, layer.nbytes)
                continue
            added: dict[str, LayerPart] = {}
            removed: set[str] = set()
            for member in self._list_members(layer, room):
                path = self._check(member.path)
                num_characters += len(path)
                if num_characters > _MAX_CHARACTERS:
                    raise SourceFailed(f"the names of the files in {self.url} are more than {_MAX_CHARACTERS:,} characters")
                folder, _, name = path.rpartition("/")
                if name.startswith(_REMOVED):
                    name = "" if name == _REMOVED_ALL else name.removeprefix(_REMOVED)
                    removed.add(f"{folder}/{name}".strip("/"))
                elif path and not member.is_folder:
                    added[path] = LayerPart(layer, member.offset, member.nbytes, member.is_file)
            room -= self._path(layer).stat().st_size
            merged = _leave_out(merged, removed) | added
        return merged

    def _check(self, path: str) -> str:
        """A name below the root of the image, in one form."""
        plain = path.rstrip("/")
        while plain.startswith("./"):
            plain = plain[2:]
        if plain.startswith("/") or ".." in plain.split("/") or "\\" in plain:
            raise SourceFailed(f"{self.url} holds {path[:200]!r}, which would leave its folder")
        if plain.count("/") > _MAX_DEPTH:
            raise SourceFailed(f"{self.url} holds {path[:200]!r}, which is more than {_MAX_DEPTH} folders deep")
        return "" if plain == "." else plain

    def _list_members(self, layer: Layer, room: int) -> Iterator[TarMember]:
        path = self._path(layer)
        if not path.exists():
            self._download(layer, path, room)
        try:
            with path.open("rb") as archive:
                yield from list_members(archive, _MAX_MEMBERS)
        except BadArchive as fault:
            raise SourceFailed(f"the layer {layer.digest} of {self.url} is no archive that can be read: {fault}") from None

    def _download(self, layer: Layer, path: Path, room: int) -> None:
        """Get a layer, compare it with its digest, and only then unpack it."""
        if not layer.kind.endswith((".tar", "+gzip", ".gzip")):
            raise SourceFailed(
                f"a layer of {self.url} is of the type {layer.kind[:100]!r}; "
                "known are tar archives, plain or with gzip, and files with a title"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{secrets.token_hex(8)}.part"
        unpacked = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            with part.open("xb") as out:
                for piece in self.registry.read_blob(layer.digest, layer.nbytes):
                    out.write(piece)
            if layer.kind.endswith("gzip"):
                with gzip.open(part) as packed, unpacked.open("xb") as out:
                    self._unpack(packed, out, room)
                unpacked.replace(part)
            with part.open("rb+") as out:
                os.fsync(out.fileno())
            part.replace(path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SourceFailed(f"the layer {layer.digest} of {self.url} does not unpack: {error}") from None
        finally:
            part.unlink(missing_ok=True)
            unpacked.unlink(missing_ok=True)

    def _unpack(self, packed: gzip.GzipFile, out: BinaryIO, room: int) -> None:
        num_written = 0
        while piece := packed.read(_PIECE_NBYTES):
            num_written += len(piece)
            if num_written > room:
                raise SourceFailed(
                    f"the layers of {self.url} unpack to more than the {format_bytes(self.max_nbytes)} of --source-size"
                )
            out.write(piece)

    def _path(self, layer: Layer) -> Path:
        return self.folder / f"{layer.digest.removeprefix('sha256:')}.tar"


def _read_layer(entry: Any) -> Layer | None:
    if not isinstance(entry, dict):
        return None
    digest, nbytes, kind, notes = entry.get("digest"), entry.get("size"), entry.get("mediaType"), entry.get("annotations") or {}
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest) or not isinstance(kind, str) or not isinstance(notes, dict):
        return None
    title = notes.get(_TITLE) or ""
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0 or not isinstance(title, str):
        return None
    return Layer(digest, nbytes, kind, title, notes.get(_UNPACK) == "true")


def _choose_platform(entries: Any) -> str | None:
    """The digest of the manifest for this machine; of a single one, whatever it is for."""
    images: list[tuple[str, str, str]] = []
    for entry in entries if isinstance(entries, list) else []:
        found = entry.get("platform") if isinstance(entry, dict) else None
        system = found if isinstance(found, dict) else {}
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and system.get("os") != "unknown":  # as attestations have it
            images.append((digest, str(system.get("os", "")), str(system.get("architecture", ""))))
    if len(images) == 1:
        return images[0][0]
    return next((digest for digest, os_name, machine in images if f"{os_name}/{machine}" == _find_machine()), None)


def _find_machine() -> str:
    machine = platform.machine()
    return f"linux/{_MACHINES.get(machine, machine)}"


def _leave_out(parts: dict[str, LayerPart], removed: set[str]) -> dict[str, LayerPart]:
    """The files of which neither they nor a folder above them were taken away; in one pass, however many were."""
    if not removed:
        return parts
    kept = {}
    for path, part in parts.items():
        above = ["", path, *(path[:at] for at, sign in enumerate(path) if sign == "/")]
        if removed.isdisjoint(above):
            kept[path] = part
    return kept


def _choose(parts: dict[str, LayerPart], name: str) -> dict[str, LayerPart]:
    """The files of the models: those below models/ where there are any. Where versions stand there, they are of one model.

    >>> layer = Layer("", 0, "", "", False)
    >>> list(_choose({"models/1/model.onnx": LayerPart(layer, 0, 0), "bin/sh": LayerPart(layer, 0, 0)}, "net"))
    ['net/1/model.onnx']
    """
    below = {path.removeprefix(_ROOT): part for path, part in parts.items() if path.startswith(_ROOT)} or parts
    if "config.pbtxt" in below or any(path.partition("/")[0].isdigit() for path in below if "/" in path):
        return {f"{name}/{path}": part for path, part in below.items()}
    return below
