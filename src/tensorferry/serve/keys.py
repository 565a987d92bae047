"""API keys in a file, one a line. The file is read again when it changes, so keys rotate without a restart."""

import hashlib
import hmac
import time
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.serve.faults import Denied

_LOOK_SECONDS = 1.0  # how long a change of the file may go unseen


class ApiKeys:
    """The keys that are good now. Lines are keys, or `sha256:` and the hash of one; `#` starts a remark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.looked_at = 0.0
        self.mark: tuple[int, int, int] | None = None
        self.hashes: frozenset[bytes] = frozenset()
        self._look()
        if not self.hashes:
            raise BadOption(f"{path} holds no API key; write one a line")

    def check(self, sent: str) -> None:
        """Raise Denied unless `sent` (`Bearer KEY`, or the key alone) is a good key."""
        now = time.monotonic()
        if now - self.looked_at > _LOOK_SECONDS:
            self._look()
        key = sent.removeprefix("Bearer ").strip()
        digest = hashlib.sha256(key.encode()).digest()
        # every hash is compared, so that the time tells nothing
        if not key or sum(hmac.compare_digest(digest, known) for known in self.hashes) == 0:
            raise Denied("a valid API key is needed: send it as 'Authorization: Bearer KEY'")

    def _look(self) -> None:
        self.looked_at = time.monotonic()
        try:
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark == self.mark:
                return
            lines = self.path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            if self.mark is None:
                raise BadOption(f"cannot read the API keys in {self.path}: {error}") from None
            return  # the file is being replaced; the old keys stay good until there are new ones
        self.mark = mark
        words = (line.split("#")[0].strip() for line in lines)
        self.hashes = frozenset(_hash(word) for word in words if word)


def _hash(word: str) -> bytes:
    if not word.startswith("sha256:"):
        return hashlib.sha256(word.encode()).digest()
    try:
        return bytes.fromhex(word.removeprefix("sha256:"))
    except ValueError:
        raise BadOption(f"{word!r} is not a SHA-256 in hexadecimal") from None
