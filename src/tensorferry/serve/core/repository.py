"""The folder of models: what is there, what is loaded, and how one becomes the other.

A model is loaded beside the one that serves and takes its place in one assignment; the old one finishes what it has and is closed
in the background. Every public method may be called from any thread; loads of one model never overlap.
"""

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.config import CONFIG_NAME, choose_versions, is_ensemble, parse_config, read_config
from tensorferry.serve.core.ensemble import EnsembleModel, read_steps
from tensorferry.serve.core.faults import InvalidRequest, NotFound, Unavailable
from tensorferry.serve.core.folder import (
    Fingerprint,
    drop_upload,
    fingerprint,
    give_memory_back,
    list_models,
    list_versions,
    store_upload,
)
from tensorferry.serve.core.loading import load_model
from tensorferry.serve.core.model import Model
from tensorferry.serve.core.spec import make_spec
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.sources import Mirror

_LOG = logging.getLogger("tensorferry.serve")
_MAX_NAME_NBYTES = 255  # of a folder


class State(StrEnum):
    """Where a version is, in the protocol's words."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class VersionState:
    """One line of the repository's index."""

    name: str
    version: str
    state: State
    reason: str = ""


@dataclass(slots=True)
class Entry:
    """One model: the versions that serve, and what is known of the others."""

    name: str
    versions: dict[int, Model] = field(default_factory=dict)  # replaced whole, never changed
    prints: dict[int, Fingerprint] = field(default_factory=dict)  # of the versions that serve; the last part is the folder
    loads_from: Path | None = None  # the folder of a load that is under way
    states: dict[int, VersionState] = field(default_factory=dict)
    loading: threading.Lock = field(default_factory=threading.Lock)
    seen: Fingerprint | None = None  # of the whole folder, at the last poll
    acted_on: Fingerprint | None = None  # the one that was loaded, or tried
    uploads: set[Path] = field(default_factory=set)  # folders of files that came with requests to load


class Repository:
    """The models below one folder, or those of a source, of which `mirror` keeps a folder for every state."""

    def __init__(self, root: Path, workshop: Workshop, num_load_threads: int = 2, mirror: Mirror | None = None) -> None:
        if not root.is_dir():
            raise BadModel(f"no folder {root}; name the folder that holds the models, one folder each")
        self.root = root
        self.mirror = mirror
        self.workshop = workshop
        self.entries: dict[str, Entry] = {}
        self.lock = threading.Lock()
        self.loaders = ThreadPoolExecutor(num_load_threads, "ferry-load")
        self.closers = ThreadPoolExecutor(4, "ferry-close")
        self.has_started = False

    # ---- looking -----------------------------------------------------------------------------------------------------

    def find(self, name: str, version: str) -> Model:
        """The loaded model of a name and version; the newest where `version` is empty."""
        entry = self.entries.get(name)
        if entry is None or not entry.versions:
            raise self._explain(name, version)
        versions = entry.versions
        if not version:
            return versions[max(versions)]
        model = versions.get(int(version)) if version.isascii() and version.isdecimal() and len(version) < 19 else None
        if model is None:
            raise self._explain(name, version)
        return model

    def versions_of(self, name: str) -> list[str]:
        """The versions that serve."""
        entry = self.entries.get(name)
        return [str(version) for version in sorted(entry.versions)] if entry else []

    def models(self) -> list[Model]:
        """Everything that serves."""
        return [model for _, entry in sorted(self.entries.items()) for _, model in sorted(entry.versions.items())]

    def index(self, ready_only: bool = False) -> list[VersionState]:
        """What is known of every model in the folder, loaded or not."""
        lines: list[VersionState] = []
        for name in sorted({*self.entries, *list_models(self.root)}):
            entry = self.entries.get(name)
            states = sorted(entry.states.items()) if entry else []
            lines += [state for _, state in states] or [VersionState(name, "", State.UNAVAILABLE, "unloaded")]
        return [line for line in lines if line.state is State.READY or not ready_only]

    # ---- loading -----------------------------------------------------------------------------------------------------

    def refresh(self, names: list[str] | None = None, *, only_settled: bool = False) -> None:
        """Look at the source, where the models come from one; raises SourceFailed."""
        if self.mirror is None:
            return
        newest = self.mirror.update(names, only_settled=only_settled)
        with self.lock:
            self.root = newest
            entries = list(self.entries.values())
            in_use = {entry.loads_from for entry in entries} | {mark[-1] for entry in entries for mark in entry.prints.values()}
        self.mirror.prune([folder for folder in in_use if isinstance(folder, Path)])

    def load_all(self, names: list[str] | None = None) -> None:
        """Load every model of the folder (or those named), ensembles after their parts; a broken one is only logged."""
        wanted = sorted(list_models(self.root)) if names is None else names
        try:
            ensembles = self._ensembles(wanted)
            list(self.loaders.map(self._try_load, [name for name in wanted if name not in ensembles]))
            for name in ensembles:
                self._try_load(name)
        finally:
            self.has_started = True

    def load(self, name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
        """Load or reload a model by name, parts of an ensemble first; raises BadModel."""
        if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME_NBYTES:
            raise InvalidRequest(f"{name!r} cannot be the name of a model")
        with self._hold(name) as entry:
            folder = self._upload(entry, config, files) if files else self._begin_load(entry)
            known = set(entry.states)
            try:
                parsed = parse_config(config, name) if config else read_config(folder)
                if is_ensemble(parsed):
                    self._check_circle(parsed, (name,))
                    self._load_parts(parsed)
                self._load_versions(entry, folder, parsed)
            except Exception as error:
                fault = _blame(name, error)
                if files:  # which are dropped again, and with them all that is known of versions that nobody else has
                    for version in entry.states.keys() - known - entry.versions.keys():
                        del entry.states[version]
                else:
                    self._note_broken(entry, fault)
                raise fault from None

    def unload(self, name: str, with_parts: bool = False) -> None:
        """Take a model out of service; its memory is given back when its last request is answered."""
        if name not in self.entries:
            raise NotFound(f"model '{name}' is not loaded")
        with self._hold(name) as entry:
            parts = [step.model_name for model in entry.versions.values() for step in read_steps(model.config)]
            self._replace(entry, {}, {})
            for version, line in entry.states.items():
                if line.state is not State.UNLOADING:
                    entry.states[version] = VersionState(name, str(version), State.UNAVAILABLE, "unloaded")
        for part in parts if with_parts else ():
            self.unload(part, with_parts=True)

    def poll(self) -> None:
        """Load what is new or changed in the folder, unload what is gone."""
        self.refresh(only_settled=True)
        on_disk = list_models(self.root)
        for name in sorted(set(self.entries) - on_disk):
            if self.entries[name].versions:
                self.unload(name)
            self.entries.pop(name)
        changed = []
        for name in sorted(on_disk):
            seen = fingerprint(self.root / name)
            entry = self._entry(name)
            # a folder that changed since the last look may still be being written
            if entry.seen == seen != entry.acted_on:
                changed.append(name)
            entry.seen = seen
        if changed:
            ensembles = self._ensembles(sorted(on_disk))
            # an ensemble that could not load may do so now that something else has changed
            broken = [name for name in ensembles if not self.entries[name].versions]
            self.load_all(sorted({*changed, *broken}))

    def close(self) -> None:
        """Finish everything that is under way and give everything back."""
        self.loaders.shutdown(wait=True, cancel_futures=True)
        for name in list(self.entries):
            with self._hold(name) as entry:
                self._replace(entry, {}, {})
        self.closers.shutdown(wait=True)

    # ---- the parts of it ---------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Entry:
        with self.lock:
            return self.entries.setdefault(name, Entry(name))

    @contextmanager
    def _hold(self, name: str) -> Iterator[Entry]:
        """The entry of a model, kept from other loads; what nothing serves from and nothing is known of is dropped after it."""
        while True:
            entry = self._entry(name)
            with entry.loading:
                if self.entries.get(name) is not entry:  # dropped while this waited for it
                    continue
                try:
                    yield entry
                finally:
                    entry.loads_from = None
                    unused = entry.uploads - {mark[-1] for mark in entry.prints.values()}
                    entry.uploads -= unused
                    for folder in unused:
                        drop_upload(folder)
                    if not entry.states:
                        self.entries.pop(name, None)
                return

    def _begin_load(self, entry: Entry) -> Path:
        """A model's folder, which stays as it is until the load has ended, whatever becomes of the source."""
        with self.lock:
            entry.loads_from = self._folder(entry.name)
            return entry.loads_from

    def _folder(self, name: str) -> Path:
        # a name from a request is only ever compared with what the folder lists, never put into a path first
        if name not in list_models(self.root):
            raise BadModel(f"failed to load '{name}': no such folder in the model repository")
        return self.root / name

    def _ensembles(self, names: list[str]) -> list[str]:
        """Those of `names` that are ensembles, parts before wholes."""
        parts: dict[str, set[str]] = {}
        for name in names:
            try:
                config = read_config(self._folder(name))
            except FerryError:
                continue
            if is_ensemble(config):
                parts[name] = {step.model_name for step in read_steps(config)}
        ordered: list[str] = []
        while len(ordered) < len(parts):
            ready = [name for name in parts if name not in ordered and not (parts[name] & parts.keys()) - set(ordered)]
            ordered += ready or [name for name in parts if name not in ordered]  # a circle fails when it is loaded
        return ordered

    def _try_load(self, name: str) -> None:
        entry = self._entry(name)
        entry.acted_on = entry.seen = fingerprint(self.root / name)
        try:
            self.load(name)
        except FerryError as error:
            _LOG.error("model '%s' is not served: %s", name, error)
        except Exception:
            _LOG.exception("model '%s' is not served", name)

    def _check_circle(self, config: Any, above: tuple[str, ...]) -> None:
        # found before anything is loaded: two models that wait for each other's lock would wait for ever
        for step in read_steps(config):
            if step.model_name in above:
                raise BadModel(f"the ensemble '{above[0]}' calls itself: {' > '.join((*above, step.model_name))}")
            for part in self._configs(step.model_name):
                if is_ensemble(part):
                    self._check_circle(part, (*above, step.model_name))

    def _configs(self, name: str) -> list[Any]:
        """What a model's versions are served with; what it would be loaded with, where none is."""
        served = [model.config for model in self.models() if model.name == name]
        return served or [read_config(self._folder(name))]

    def _load_parts(self, config: Any) -> None:
        for step in read_steps(config):
            if not self.versions_of(step.model_name):
                self.refresh([step.model_name])
                self.load(step.model_name)

    def _load_versions(self, entry: Entry, folder: Path, config: Any) -> None:
        available = list_versions(folder)
        if not available and is_ensemble(config):
            available = [1]
        wanted = choose_versions(config, available)
        if not wanted:
            raise BadModel(f"model '{entry.name}' has no version to serve; expected folders such as {entry.name}/1")
        for version in entry.states.keys() - set(available) - entry.versions.keys():
            if entry.states[version].state is State.UNAVAILABLE:  # and gone from the folder
                del entry.states[version]
        settings = config.SerializeToString(deterministic=True)
        versions: dict[int, Model] = {}
        prints: dict[int, Fingerprint] = {}
        faults: list[FerryError] = []
        for version in wanted:
            mark = (settings, fingerprint(folder / str(version)), folder)
            old = entry.versions.get(version)
            # of a source, the same files may be in another folder by now; the model goes on with those it was loaded from
            if old is not None and entry.prints[version][:-1] == mark[:-1] and not is_ensemble(config):
                versions[version], prints[version] = old, entry.prints[version]
                continue
            if old is None:
                entry.states[version] = VersionState(entry.name, str(version), State.LOADING)
            try:
                versions[version] = self._load_one(folder, version, config)
                prints[version] = mark
            except Exception as error:
                faults.append(_blame(entry.name, error))
                if old is not None:
                    _LOG.error("model '%s' version %d stays as it was: %s", entry.name, version, faults[-1])
                else:
                    entry.states[version] = VersionState(entry.name, str(version), State.UNAVAILABLE, str(faults[-1]))
        if faults:  # what served before goes on serving, also versions that the new ones were to take the place of
            self._replace(entry, entry.versions | versions, entry.prints | prints)
            raise faults[0]
        self._replace(entry, versions, prints)

    def _load_one(self, folder: Path, version: int, config: Any) -> Model:
        if not is_ensemble(config):
            return load_model(self.workshop, folder, version, config, self.find, is_sent=folder.parent != self.root)
        if not config.input or not config.output:
            raise BadModel(f"the ensemble '{config.name}' must name its inputs and outputs in {CONFIG_NAME}")
        config.platform = config.platform or "ensemble"
        try:
            return EnsembleModel(version, config, make_spec(config, folder), self.find)
        except (NotFound, Unavailable) as fault:
            raise BadModel(f"the ensemble '{config.name}' lacks a model: {fault}") from None

    def _replace(self, entry: Entry, versions: dict[int, Model], prints: dict[int, Fingerprint]) -> None:
        old, entry.versions, entry.prints = entry.versions, versions, prints
        for version, model in versions.items():
            entry.states[version] = VersionState(entry.name, str(version), State.READY)
            if old.get(version) is not model:
                _LOG.info("model '%s' version %d is served", entry.name, version)
        for version, model in old.items():
            if versions.get(version) is not model:
                if version not in versions:
                    entry.states[version] = VersionState(entry.name, str(version), State.UNLOADING)
                self.closers.submit(self._retire, entry, version, model)

    def _retire(self, entry: Entry, version: int, model: Model) -> None:
        try:
            model.close()
        except Exception:
            _LOG.exception("model '%s' version %d did not close cleanly", entry.name, version)
        del model
        line = entry.states.get(version)
        if line is not None and line.state is State.UNLOADING:
            entry.states[version] = VersionState(entry.name, str(version), State.UNAVAILABLE, "unloaded")
            _LOG.info("model '%s' version %d is unloaded", entry.name, version)
        give_memory_back()

    def _upload(self, entry: Entry, config: str, files: dict[str, bytes]) -> Path:
        if not config:
            raise InvalidRequest(f"model '{entry.name}' comes with files, so it needs its configuration with them as well")
        folder = store_upload(entry.name, files)
        entry.uploads.add(folder)
        return folder

    def _note_broken(self, entry: Entry, error: FerryError) -> None:
        if not entry.states:
            entry.states[1] = VersionState(entry.name, "1", State.UNAVAILABLE, str(error))

    def _explain(self, name: str, version: str) -> NotFound | Unavailable:
        entry = self.entries.get(name)
        states = list(entry.states.values()) if entry else []
        mine = [line for line in states if version in ("", line.version)]
        is_to_come = not mine and not self.has_started and name in list_models(self.root)
        if is_to_come or any(line.state is State.LOADING for line in mine):
            return Unavailable(f"Request for model '{name}' that is still loading; try again soon")
        if entry is None:
            return NotFound(f"Request for unknown model: '{name}' is not found")
        reason = next((line.reason for line in mine if line.reason), "")
        what = f"'{name}' version {version}" if version else f"'{name}'"
        return NotFound(f"Request for unknown model: {what} is not ready" + (f": {reason}" if reason else ""))


def _blame(name: str, error: Exception) -> FerryError:
    """What is told of a load that failed: whatever a model's files make a library throw is the model's fault."""
    if isinstance(error, FerryError):
        return error
    if isinstance(error, OSError):  # its text would tell clients of the server's folders
        return BadModel(f"cannot read the model '{name}': {error.strerror}")
    _LOG.error("model '%s' failed to load in a way that nobody foresaw", name, exc_info=error)
    return BadModel(f"cannot load the model '{name}': {type(error).__name__}: {error}")
