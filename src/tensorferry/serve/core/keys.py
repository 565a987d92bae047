"""API keys in a file, one a line. The file is read again when it changes, so keys rotate without a restart."""

import hashlib
import hmac
import logging
import time
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.serve.core.faults import Denied

_LOG = logging.getLogger("tensorferry.serve")
_SCHEME = "bearer "
_LOOK_SECONDS = 1.0  # how long a change of the file may go unseen


class ApiKeys:
    """The keys that are good now. Lines are keys, or `sha256:` and the hash of one; `#` starts a remark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.looked_at = 0.0
        self.mark: tuple[int, int, int] | None = None
        self.hashes: frozenset[bytes] = frozenset()
        self.complaint = ""  # what was last said of the file
        self._look()

    def check(self, sent: str) -> None:
        """Raise Denied unless `sent` (`Bearer KEY`, or the key alone) is a good key."""
        if not self.knows(sent):
            raise Denied("a valid API key is needed: send it as 'Authorization: Bearer KEY'")

    def knows(self, sent: str) -> bool:
        """Whether it is one."""
        now = time.monotonic()
        if now - self.looked_at > _LOOK_SECONDS:
            self._look()
        key = sent[len(_SCHEME) :].strip() if sent[: len(_SCHEME)].lower() == _SCHEME else sent.strip()
        digest = hashlib.sha256(key.encode()).digest()
        # every hash is compared, so that the time tells nothing
        return bool(key) and sum(hmac.compare_digest(digest, known) for known in self.hashes) > 0

    def _look(self) -> None:
        self.looked_at = time.monotonic()
        try:
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark != self.mark:
                self.hashes, self.mark = _read(self.path), mark
            self.complaint = ""
        except (OSError, ValueError, BadOption) as error:
            if not self.hashes:
                raise BadOption(f"cannot read the API keys in {self.path}: {error}") from None
            # the file may be being replaced; the old keys stay good until there are new ones
            if str(error) != self.complaint:
                _LOG.error("the API keys stay as they were, %s cannot be read: %s", self.path, error)
            self.complaint = str(error)


def _read(path: Path) -> frozenset[bytes]:
    words = (line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    hashes = frozenset(_hash(word, number) for number, word in enumerate(words, 1) if word)
    if not hashes:
        raise BadOption("it holds no API key; write one a line")
    return hashes


def _hash(word: str, number: int) -> bytes:
    if not word.startswith("sha256:"):
        return hashlib.sha256(word.encode()).digest()
    try:
        found = bytes.fromhex(word.removeprefix("sha256:"))
    except ValueError:
        found = b""
    if len(found) != hashlib.sha256().digest_size:
        raise BadOption(f"line {number} is not a SHA-256 in hexadecimal")
    return found
