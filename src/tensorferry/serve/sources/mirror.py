"""A source's models as folders of this machine: each there whole or not at all, and the old one until then.

    cache/
      files/HASH            what was downloaded, by name and etag; written under another name, then renamed
      snapshots/HASH/NAME/  what the server reads: links to those files, one folder for each state of the source
      current.json          which files the newest snapshot has

A snapshot is built aside and renamed, and never changes afterwards: whoever loads from one sees one state of the source. Every
file is read with the etag of the listing, and a model is taken over only if the source lists the same files before and after its
download. So an upload that is under way is left for the next look.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Collection
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.files import write_whole
from tensorferry.serve.sources.source import (
    ModelSource,
    SourceChanged,
    SourceFailed,
    SourceFile,
    find_fault,
    group_by_model,
)
from tensorferry.units import format_bytes

MAX_NUM_FILES = 20_000
_LOG = logging.getLogger("tensorferry.serve")
_FORMAT = "tensorferry-source-1"
_HASH_DIGITS = 32
_MAX_TRIES = 3  # where a source changes while it is read
Files = dict[str, SourceFile]  # of a model, by their names in its folder


class Mirror:
    """Keeps a cache folder like a source. Its methods may be called from any thread, and take turns."""

    def __init__(self, source: ModelSource, cache: Path, max_nbytes: int) -> None:
        self.source = source
        self.cache = cache
        self.max_nbytes = max_nbytes
        self.turn = threading.Lock()
        self.seen: dict[str, Files] = {}  # at the last look
        self.refused: set[str] = set()  # models that are listed and cannot be taken
        self.told: dict[str, str] = {}  # what was last said of each model
        try:
            for name in ("files", "snapshots"):
                (cache / name).mkdir(parents=True, exist_ok=True)
            self.lock = _lock(cache)
            _drop_parts(cache)
            self.models = self._recall()
            self.folder = self._link(self.models)
        except OSError as error:
            raise BadOption(f"cannot keep models in {cache}: {error.strerror or error}; name another --source-cache") from None

    @property
    def is_filled(self) -> bool:
        """Whether there is anything of the source here, from this run or an earlier one."""
        return bool(self.models)

    def is_complete(self, names: Collection[str] | None) -> bool:
        """Whether everything that was asked for is as it was last listed."""
        return all(self.models.get(name) == files for name, files in self.seen.items() if names is None or name in names)

    def check(self) -> None:
        """Raise SourceFailed where the source cannot be listed, or holds no models."""
        if not self._list():
            raise SourceFailed(f"no models are at {self.source.url}; expected NAME/1/model.onnx and the like below it")

    def update(self, names: Collection[str] | None = None, *, only_settled: bool = False) -> Path:
        """The folder of a repository with what the source holds now: of the models named, or of all.

        With `only_settled`, a model that changed since the last look is left as it was until the next. A model that cannot be
        taken over stays as it was, which is logged; raises SourceFailed where the source cannot be listed.
        """
        with self.turn:
            listed = self._list()
            for _ in range(1 if only_settled else _MAX_TRIES):
                wanted = self._choose(listed, names, only_settled)
                for name, files in wanted.items():
                    self._download(name, files)
                before, listed = listed, self._list() if wanted else listed
                arrived = {name: files for name, files in wanted.items() if listed.get(name) == files and self._is_here(files)}
                kept = {name: files for name, files in self.models.items() if name in listed or name in self.refused}
                unfetched: dict[str, Files] = {} if names is None else {name: {} for name in listed}
                self._take_over(unfetched | kept | arrived)
                if listed == before:
                    break
            self.seen = listed
            return self.folder

    def prune(self, in_use: Collection[Path]) -> None:
        """Remove what neither the newest snapshot nor a folder in use needs."""
        with self.turn:
            kept = {folder.parent for folder in in_use} | {self.folder}
            for snapshot in (self.cache / "snapshots").iterdir():
                if snapshot not in kept:
                    shutil.rmtree(snapshot, ignore_errors=True)
            needed = {_hash_file(file) for files in self.models.values() for file in files.values()}
            for path in (self.cache / "files").iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another server have the cache."""
        os.close(self.lock)

    # ---- the parts of it ---------------------------------------------------------------------------------------------

    def _choose(self, listed: dict[str, Files], names: Collection[str] | None, only_settled: bool) -> dict[str, Files]:
        """The models to get: those asked for that are not here as they are listed."""
        return {
            name: files
            for name, files in listed.items()
            if (names is None or name in names)
            and self.models.get(name) != files
            and (not only_settled or self.seen.get(name) == files)
        }

    def _list(self) -> dict[str, Files]:
        """The models of the source; one with a name that cannot be a file here is left out."""
        files: Files = {}
        faults: dict[str, str] = {}
        for file in self.source.list_files():
            fault = find_fault(file.path)
            if fault:
                faults[file.path.partition("/")[0]] = f"the name {file.path[:200]!r} is refused: {fault}"
                continue
            files[file.path] = file
            if len(files) > MAX_NUM_FILES:
                raise SourceFailed(f"{self.source.url} holds more than {MAX_NUM_FILES:,} files; name a folder of models in it")
        folders = {path[:at] for path in files for at, sign in enumerate(path) if sign == "/"}
        for folder in folders & files.keys():  # what stores show as a folder is an empty file to others
            if files.pop(folder).nbytes:
                faults[folder.partition("/")[0]] = f"{folder!r} is a file and a folder"
        self.refused = set(faults)
        for name, fault in faults.items():
            self._tell(name, fault)
        return {name: found for name, found in group_by_model(files).items() if name not in faults}

    def _download(self, name: str, files: Files) -> None:
        """Get the files of a model that are not here; what goes wrong is logged."""
        missing = [file for file in files.values() if not self._path(file).exists()]
        try:
            self._check_room(name, files, missing)
            for file in missing:
                self._fetch(file)
            self.told.pop(name, None)
        except SourceChanged as change:
            _LOG.info("model '%s' is looked at again later: %s", name, change)
        except SourceFailed as fault:
            self._tell(name, str(fault))
        except OSError as error:
            self._tell(name, f"cannot write to {self.cache}: {error.strerror or error}")

    def _check_room(self, name: str, files: Files, missing: list[SourceFile]) -> None:
        others = sum(file.nbytes for other, kept in self.models.items() if other != name for file in kept.values())
        total = others + sum(file.nbytes for file in files.values())
        if total > self.max_nbytes:
            raise SourceFailed(
                f"with it the models of {self.source.url} take {format_bytes(total)}; "
                f"--source-size is {format_bytes(self.max_nbytes)}"
            )
        needed, free = sum(file.nbytes for file in missing), shutil.disk_usage(self.cache).free
        if needed > free:
            raise SourceFailed(f"it needs {format_bytes(needed)} more in {self.cache}, where {format_bytes(free)} are free")

    def _fetch(self, file: SourceFile) -> None:
        path = self._path(file)
        part = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            num_read = 0
            with part.open("xb") as out:
                for piece in self.source.read(file):
                    num_read += len(piece)
                    if num_read > file.nbytes:
                        break
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            if num_read != file.nbytes:
                raise SourceChanged(f"{file.path!r} has another size than the {file.nbytes} bytes that were listed")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _take_over(self, models: dict[str, Files]) -> None:
        """Make a snapshot of these models the newest."""
        if models == self.models:
            return
        try:
            self.folder = self._link(models)
            self.models = models
            write_whole(
                self.cache / "current.json", json.dumps({"format": _FORMAT, "url": self.source.url, "models": _plain(models)})
            )
        except OSError as error:
            raise SourceFailed(f"cannot keep models in {self.cache}: {error.strerror or error}") from None

    def _link(self, models: dict[str, Files]) -> Path:
        """The snapshot that holds these models, built where it is not there yet."""
        state = json.dumps(_plain(models), sort_keys=True).encode()
        folder = self.cache / "snapshots" / hashlib.sha256(state).hexdigest()[:_HASH_DIGITS]
        if folder.exists():
            return folder
        part = folder.with_name(f".{secrets.token_hex(8)}.part")
        part.mkdir()
        for name, files in models.items():
            (part / name).mkdir()
            for rest, file in files.items():
                target = part / name / rest
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self._path(file), target)
                except OSError:  # a file system without hard links
                    shutil.copy2(self._path(file), target)
        part.replace(folder)
        return folder

    def _recall(self) -> dict[str, Files]:
        """What an earlier server had, as far as it is still here."""
        try:
            data = json.loads((self.cache / "current.json").read_text("utf-8"))
            if data["format"] != _FORMAT or data["url"] != self.source.url:
                return {}
            models = {name: {rest: SourceFile(*row) for rest, row in files.items()} for name, files in data["models"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {name: files for name, files in models.items() if self._is_here(files)}

    def _is_here(self, files: Files) -> bool:
        return all(self._path(file).exists() for file in files.values())

    def _path(self, file: SourceFile) -> Path:
        return self.cache / "files" / _hash_file(file)

    def _tell(self, name: str, fault: str) -> None:
        """Say what is wrong with a model, once."""
        if self.told.get(name) != fault:
            _LOG.error("model '%s' of %s stays as it was: %s", name, self.source.url, fault)
        self.told[name] = fault


def _hash_file(file: SourceFile) -> str:
    return hashlib.sha256(f"{file.path}\0{file.etag}\0{file.nbytes}".encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]


def _plain(models: dict[str, Files]) -> dict[str, dict[str, list[str | int]]]:
    return {
        name: {rest: [f.path, f.nbytes, f.etag] for rest, f in sorted(files.items())} for name, files in sorted(models.items())
    }


def _lock(cache: Path) -> int:
    handle = os.open(cache / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BadOption(f"another server keeps its models in {cache}; name another --source-cache") from None
    return handle


def _drop_parts(cache: Path) -> None:
    """Remove what a server that was killed had begun."""
    for path in cache.glob("*/.*.part"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
