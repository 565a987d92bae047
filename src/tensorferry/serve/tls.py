"""TLS with certificates that are read again when their files change: connections go on, new ones get the new certificate."""

import logging
import ssl
import time
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.messages import first_line

_LOG = logging.getLogger("tensorferry.serve")
_LOOK_SECONDS = 1.0  # how long a change of the files may go unseen
Mark = tuple[tuple[int, int, int], ...]


class Certificates:
    """A certificate, its key, and maybe an authority that must have signed those of clients."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None, protocol: str) -> None:
        self.cert = cert
        self.key = key
        self.client_ca = client_ca
        self.protocol = protocol
        try:
            self.mark = self._look()
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise BadOption(f"cannot use the certificate {cert}: {_explain(error)}") from None
        self.looked_at = time.monotonic()

    def current(self) -> ssl.SSLContext:
        """What new connections are greeted with: the files as they are, or as they last were good."""
        now = time.monotonic()
        if now - self.looked_at > _LOOK_SECONDS:
            self.looked_at = now
            self._reload()
        return self.context

    def _reload(self) -> None:
        try:
            mark = self._look()
            if mark == self.mark:
                return
            self.mark = mark  # a file that is no good is not tried again before it changes once more
            self.context = self._load()
            _LOG.info("the certificate %s was read again", self.cert)
        except (OSError, ssl.SSLError) as error:
            if not isinstance(error, FileNotFoundError):  # files that are being replaced are gone for a moment
                _LOG.error("the certificate stays as it was, %s cannot be used: %s", self.cert, _explain(error))

    def _look(self) -> Mark:
        stats = [path.stat() for path in (self.cert, self.key, self.client_ca) if path is not None]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([self.protocol])
        # without the function, a key with a password would be asked for at the terminal
        context.load_cert_chain(self.cert, self.key, password=_refuse_password)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _refuse_password() -> str:
    raise OSError("the key has a password; the server has nobody to ask for it")


def _explain(error: OSError) -> str:
    return first_line(error) if isinstance(error, ssl.SSLError) else f"{error.strerror or error}"
