"""A run kept in a bucket while it is trained, and brought back before it goes on: what pods do without a shared volume.

A checkpoint is uploaded with its `state.json` last, which holds the digests of its other files: one that was cut short on the way
is known as damaged, and the one before it is taken. What has gone from the folder goes from the bucket only once a newer
checkpoint is there.
"""

import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tensorferry.errors import BadOption, RunFailed
from tensorferry.files import force
from tensorferry.serve.sources.object_store import SCHEMES, ObjectStore
from tensorferry.serve.sources.source import SourceFailed, check_url, find_fault
from tensorferry.units import format_bytes

_LAST = "state.json"  # of a checkpoint
_CHECKPOINT = "step-"
_LOOK_SECONDS = 10.0

Stamp = tuple[int, int]  # the size and the time of the last change


def check_bucket(url: str) -> str:
    """The address, where it is one of a folder in a bucket; raises BadOption."""
    if check_url(url) not in SCHEMES:
        raise BadOption(f"a run cannot be kept at {url!r}; write an address such as s3://bucket/runs")
    return url.rstrip("/")


def restore_run(url: str, folder: Path) -> None:
    """Bring a run back from a bucket, whole or not at all; raises RunFailed. A folder that is there is left alone."""
    if folder.exists():
        print(f"{folder} is there, and stays as it is", flush=True)
        return
    part = folder.with_name(f".{secrets.token_hex(8)}.part")
    num_files = num_bytes = 0
    try:
        store = ObjectStore(check_bucket(url))
        for file in store.list_files():
            fault = find_fault(file.path)
            if fault:
                raise RunFailed(f"{url} holds {file.path[:100]!r}, which is no file of a run: {fault}")
            path = part / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as target:
                target.writelines(store.read(file))
            force(path)
            num_files, num_bytes = num_files + 1, num_bytes + file.nbytes
        if num_files:
            part.rename(folder)
    except SourceFailed as error:
        raise RunFailed(f"the run cannot be brought back: {error}") from None
    except OSError as error:
        raise RunFailed(f"cannot write the run to {str(folder)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"brought back: {num_files} files, {format_bytes(num_bytes)}" if num_files else f"nothing is at {url} yet", flush=True)


def keep_run(folder: Path, url: str) -> None:
    """Copy what changes until SIGTERM or SIGINT, and then what is left; raises RunFailed where that cannot be copied."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    copy = BucketCopy(folder, ObjectStore(check_bucket(url)))
    while not stop.is_set():
        try:
            copy.begin()
            copy.update()
        except SourceFailed as error:  # it may answer again before the training ends
            print(f"ferry: {error}", file=sys.stderr, flush=True)
        stop.wait(_LOOK_SECONDS)
    try:
        copy.begin()
        copy.update()
    except SourceFailed as error:
        raise RunFailed(f"the end of the run is not in the bucket: {error}") from None


@dataclass
class BucketCopy:
    """What of a folder is in a bucket."""

    folder: Path
    store: ObjectStore
    known: dict[str, Stamp] = field(default_factory=dict)
    is_begun: bool = False

    def begin(self) -> None:
        """Learn what is there, the first time: checkpoints do not change once they have their name. Raises SourceFailed."""
        if self.is_begun:
            return
        for file in self.store.list_files():
            stamp = _stamp(self.folder / file.path)
            if _is_of_checkpoint(file.path) and (stamp is None or stamp[0] == file.nbytes):
                self.known[file.path] = stamp or (file.nbytes, 0)
        self.is_begun = True

    def update(self) -> None:
        """Upload what is new or another by now, then remove the checkpoints that are gone; raises SourceFailed."""
        found = {str(path.relative_to(self.folder)): _stamp(path) for path in self._list_files()}
        new = [name for name, stamp in found.items() if stamp is not None and self.known.get(name) != stamp]
        for name in sorted(new, key=lambda name: (PurePosixPath(name).name == _LAST, name)):
            self._upload(name)
        gone = [name for name in self.known if name not in found and _is_of_checkpoint(name)]
        # a folder without checkpoints is one that was not brought back, and no reason to remove the last that there are
        if any(map(_is_of_checkpoint, found)):
            for name in sorted(gone, key=lambda name: PurePosixPath(name).name != _LAST):
                self.store.remove(name)
                del self.known[name]

    def _upload(self, name: str) -> None:
        path = self.folder / name
        before = _stamp(path)
        if before is None:  # dropped since it was listed
            return
        try:
            self.store.write(name, path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceFailed(f"cannot read {str(path)!r}: {error.strerror or error}") from None
        self.known[name] = before

    def _list_files(self) -> Iterator[Path]:
        """Files of the run: no links, which are for people, and nothing hidden, which is not whole yet."""
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [each for each in folders if not each.startswith(".") and not Path(parent, each).is_symlink()]
            yield from (Path(parent, name) for name in names if not name.startswith(".") and not Path(parent, name).is_symlink())


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _is_of_checkpoint(name: str) -> bool:
    return any(part.startswith(_CHECKPOINT) for part in PurePosixPath(name).parts[:-1])
