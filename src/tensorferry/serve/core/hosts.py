"""The names that clients may call the server by: what keeps a page from reaching it under a name of its own.

A page can have its own name lead to another address once it is loaded (DNS rebinding): the browser then takes the server for the
page's own, but still sends the page's name as `Host`. A page cannot do so with an address, so where names are listed, addresses
are let in: probes of Kubernetes ask by the address of the pod.
"""

import ipaddress
import re
from collections.abc import Sequence

from tensorferry.errors import BadOption
from tensorferry.serve.core.faults import Forbidden

ANY = "*"
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
_MAX_KNOWN = 256


class AllowedHosts:
    """The rule of one server. Without names, a server on a loopback address takes loopback names, any other takes all."""

    def __init__(self, names: Sequence[str] | None, bound_to: str) -> None:
        self.names = frozenset(_check_name(name) for name in names) if names is not None else frozenset()
        self.is_off = ANY in self.names or (names is None and not _is_loopback(bound_to))
        self.known: set[str] = set()  # that were checked and are good

    def check(self, authority: str) -> None:
        """Raise Forbidden unless a `Host` or an `:authority` is one of the server's; a client without one is no browser."""
        if self.is_off or authority in self.known or not authority:
            return
        if not self._is_good(authority):
            raise Forbidden(f"this server does not go by the name {authority[:100]!r}; --allowed-hosts can add it")
        if len(self.known) < _MAX_KNOWN:
            self.known.add(authority)

    def lists(self, authority: str) -> bool:
        """Whether a name was given as one of the server's, so that pages of it may use the server behind a proxy."""
        return _matches(_strip_port(authority), self.names)

    def _is_good(self, authority: str) -> bool:
        host = _strip_port(authority)
        if _is_loopback(host) or host.endswith(".localhost"):
            return True
        return bool(self.names) and (_is_address(host) or _matches(host, self.names))


def _check_name(name: str) -> str:
    name = name.strip().lower().rstrip(".")
    if name != ANY and not _NAME.fullmatch(name) and not _is_address(name):
        raise BadOption(f"--allowed-hosts takes names such as ml.example.com or *.example.com, received {name!r}")
    return name


def _matches(host: str, names: frozenset[str]) -> bool:
    """Whether a host is one of the names, or below one that begins with a star."""
    if host in names:
        return True
    parts = host.split(".")
    return any("*." + ".".join(parts[at:]) in names for at in range(1, len(parts)))


def _strip_port(authority: str) -> str:
    """The host of an authority, in lower case.

    >>> _strip_port("Ferry.example:8000"), _strip_port("[::1]:8000"), _strip_port("localhost.")
    ('ferry.example', '::1', 'localhost')
    """
    host = authority.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].rstrip(".") if host.count(":") == 1 else host.rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
