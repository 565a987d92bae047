"""A container registry, as far as models need it: manifests and blobs of one repository (OCI distribution specification 1.1).

Every byte that comes back is compared with the digest that named it. Credentials go to the registry, and to the place of tokens
that the registry names, both over TLS unless they are on this machine; never to where it redirects.
"""

import base64
import hashlib
import ipaddress
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import IO, Any

from tensorferry.errors import BadOption
from tensorferry.serve.sources.registry_login import Login, find_login
from tensorferry.serve.sources.source import SourceFailed, SourceUnreachable

MANIFEST_KINDS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(rf"({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@({DIGEST.pattern}))?")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_SECONDS = 30  # without a byte
_MAX_REDIRECTS = 5
_MAX_MANIFEST_NBYTES = 4 * 2**20
_MAX_TOKEN_NBYTES = 2**16
_PIECE_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class ImageName:
    """Where an image or an artifact is: `oci://registry/repository:tag`, or `@sha256:...` for one that never changes."""

    registry: str
    repository: str
    reference: str

    @classmethod
    def read(cls, url: str) -> "ImageName":
        """The name in an address; raises BadOption."""
        registry, _, rest = url.partition("://")[2].partition("/")
        found = _REFERENCE.fullmatch(rest)
        if not registry or found is None:
            raise BadOption(f"{url!r} names no image; write it as in oci://registry.example.com/team/models:1.0")
        return cls(registry, found[1], found[3] or found[2] or "latest")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller, who decides what goes along."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


class ImageRegistry:
    """One repository of a registry."""

    def __init__(self, name: ImageName, login: Login | None = None) -> None:
        self.name = name
        self.login = login or find_login(name.registry)
        host = _DOCKER_HUB.get(name.registry, name.registry)
        scheme = "http" if _is_loopback(host) else "https"
        self.root = f"{scheme}://{host}/v2/{name.repository}"
        self.authorization = ""
        self.opener = urllib.request.build_opener(_NoRedirects)

    def find_digest(self) -> str:
        """What the name stands for now; empty where the registry tells it only with the manifest."""
        if DIGEST.fullmatch(self.name.reference):
            return self.name.reference
        with self._open(f"/manifests/{self.name.reference}", "HEAD") as answer:
            digest = answer.headers.get("Docker-Content-Digest") or ""
        return digest if DIGEST.fullmatch(digest) else ""

    def read_manifest(self, reference: str) -> tuple[str, dict[str, Any]]:
        """The digest of a manifest and what it says."""
        with self._open(f"/manifests/{reference}") as answer:
            text = answer.read(_MAX_MANIFEST_NBYTES + 1)
        if len(text) > _MAX_MANIFEST_NBYTES:
            raise SourceFailed(f"the manifest of {self._shown} is larger than {_MAX_MANIFEST_NBYTES} bytes")
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        if DIGEST.fullmatch(reference) and digest != reference:
            raise SourceFailed(f"the manifest of {self._shown} has the digest {digest}, expected {reference}")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict):
            raise SourceFailed(f"the manifest of {self._shown} is no JSON object")
        return digest, manifest

    def read_blob(self, digest: str, nbytes: int) -> Iterator[bytes]:
        """The bytes of a blob; raises SourceFailed at their end where they are not those that the digest names."""
        found, num_read = hashlib.sha256(), 0
        with self._open(f"/blobs/{digest}") as answer:
            while piece := self._read_piece(answer):
                num_read += len(piece)
                if num_read > nbytes:
                    break
                found.update(piece)
                yield piece
        if num_read != nbytes or f"sha256:{found.hexdigest()}" != digest:
            raise SourceFailed(f"the bytes of {digest} in {self._shown} are not the {nbytes} that its manifest names")

    # ---- requests ----------------------------------------------------------------------------------------------------

    @property
    def _shown(self) -> str:
        return f"{self.name.registry}/{self.name.repository}"

    def _read_piece(self, answer: IO[bytes]) -> bytes:
        try:
            return answer.read(_PIECE_NBYTES)
        except (OSError, HTTPException) as error:
            raise SourceUnreachable(f"{self.name.registry} stopped answering: {error or type(error).__name__}") from None

    def _open(self, path: str, method: str = "GET") -> Any:
        """The answer to a request, after the registry was told who asks, and wherever it sent us."""
        url = self.root + path
        has_asked = False
        for _ in range(_MAX_REDIRECTS + 1):
            status, headers, answer = self._send(url, method)
            if status == 200:
                return answer
            answer.close()
            if status == 401 and not has_asked and url.startswith(self.root):
                has_asked = True
                self.authorization = self._authorize(headers.get_all("WWW-Authenticate") or [])
            elif status in (301, 302, 303, 307, 308):
                url = self._follow(url, headers.get("Location") or "")
            else:
                raise self._explain(status)
        raise SourceFailed(f"{self.name.registry} redirects more than {_MAX_REDIRECTS} times")

    def _send(self, url: str, method: str) -> tuple[int, Message, Any]:
        request = urllib.request.Request(url, method=method, headers={"Accept": ", ".join((*MANIFEST_KINDS, "*/*"))})
        if self.authorization and url.startswith(self.root):
            request.add_header("Authorization", self.authorization)
        try:
            answer = self.opener.open(request, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise SourceUnreachable(f"{self.name.registry} does not answer: {reason}") from None
        return answer.status, answer.headers, answer

    def _follow(self, url: str, location: str) -> str:
        target = urllib.parse.urljoin(url, location)
        if not target.startswith("https://") and not (self.root.startswith("http://") and target.startswith("http://")):
            raise SourceFailed(f"{self.name.registry} redirects to an address without TLS")
        return target

    def _authorize(self, challenges: list[str]) -> str:
        """The header that answers a challenge of the registry."""
        for challenge in challenges:
            kind, _, rest = challenge.partition(" ")
            if kind.lower() == "basic" and self.login is not None and self.login.user:
                return _write_basic(self.login)
            if kind.lower() == "bearer":
                return f"Bearer {self._fetch_token(dict(_CHALLENGE.findall(rest)))}"
        raise SourceFailed(self._explain_denied())

    def _fetch_token(self, challenge: dict[str, str]) -> str:
        realm = challenge.get("realm", "")
        if not realm.startswith("https://") and not (self.root.startswith("http://") and realm.startswith("http://")):
            raise SourceFailed(f"{self.name.registry} gives tokens at an address without TLS")
        asked = {key: challenge[key] for key in ("service", "scope") if challenge.get(key)}
        asked.setdefault("scope", f"repository:{self.name.repository}:pull")
        request = urllib.request.Request(f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(asked)}")
        if self.login is not None and self.login.identity_token:
            form = asked | {"grant_type": "refresh_token", "client_id": "tensorferry", "refresh_token": self.login.identity_token}
            request = urllib.request.Request(realm, data=urllib.parse.urlencode(form).encode())
        elif self.login is not None:
            request.add_header("Authorization", _write_basic(self.login))
        try:
            with self.opener.open(request, timeout=_SECONDS) as answer:
                found = json.loads(answer.read(_MAX_TOKEN_NBYTES))
        except urllib.error.HTTPError as error:
            error.close()
            raise self._explain(error.code) from None
        except (OSError, HTTPException) as error:
            raise SourceUnreachable(f"the tokens of {self.name.registry} are not to be had: {error}") from None
        except ValueError:
            found = None
        token = found.get("token") or found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SourceFailed(f"{self.name.registry} gave no token")
        return token

    def _explain(self, status: int) -> SourceFailed:
        if status in (401, 403):
            return SourceFailed(self._explain_denied())
        if status == 404:
            return SourceFailed(f"there is no {self._shown} with the name {self.name.reference!r}, or a part of it is missing")
        if status >= 500 or status == 429:
            return SourceUnreachable(f"{self.name.registry} answers {status}")
        return SourceFailed(f"{self.name.registry} answers {status}")

    def _explain_denied(self) -> str:
        return (
            f"access to {self._shown} is denied; log in with a tool that writes a config.json of Docker, or set "
            "REGISTRY_USERNAME and REGISTRY_PASSWORD"
        )


def _is_loopback(host: str) -> bool:
    """Whether a registry is on this machine, where it may go without TLS."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _write_basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
