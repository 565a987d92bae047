"""A registry on loopback, as the OCI distribution specification has it, with places to lie; and a client that pushes to any."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
Answer = tuple[int, dict[str, str], bytes]


def name_bytes(data: bytes) -> str:
    """The digest of a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_tar(files: dict[str, bytes], *members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of files, and of members without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    return out.getvalue()


@dataclass(frozen=True)
class PushedLayer:
    """A layer to push: as an image has it, or as oras names a file."""

    data: bytes
    kind: str = TAR
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def file(cls, title: str, data: bytes) -> "PushedLayer":
        """A file, the way oras pushes one."""
        return cls(data, TAR, {"org.opencontainers.image.title": title})

    @classmethod
    def packed(cls, data: bytes, **notes: str) -> "PushedLayer":
        """An archive, compressed."""
        return cls(gzip.compress(data, mtime=0), f"{TAR}+gzip", notes)


def write_manifest(layers: list[PushedLayer]) -> bytes:
    """The manifest of an image."""
    entries = [
        {"mediaType": each.kind, "digest": name_bytes(each.data), "size": len(each.data), "annotations": each.notes}
        for each in layers
    ]
    config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": name_bytes(b"{}"), "size": 2}
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": entries}).encode()


class LoopbackRegistry:
    """Serves what a test puts in; `fault` may answer in its place, and a password may be asked for."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.fault: Callable[[str], Answer | None] | None = None
        self.password = ""
        self.asked: list[tuple[str, str, str]] = []  # method, path, authorization
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = outer.answer(self.command, self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815  # the name that the library looks for

            def log_message(self, *_: Any) -> None:
                """Be silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.server.server_close()

    def push(self, name: str, *layers: PushedLayer) -> str:
        """Put an image there; the digest of its manifest."""
        for layer in layers:
            self.blobs[name_bytes(layer.data)] = layer.data
        return self.put_manifest(name, write_manifest(list(layers)))

    def put_manifest(self, name: str, manifest: bytes) -> str:
        """Have a tag mean a manifest."""
        self.manifests[name] = self.manifests[name_bytes(manifest)] = manifest
        return name_bytes(manifest)

    def answer(self, method: str, path: str, authorization: str) -> Answer:
        """What a request gets."""
        self.asked.append((method, path, authorization))
        if path.startswith("/token?"):
            return self._give_token(authorization)
        if self.fault is not None and (lie := self.fault(path)) is not None:
            return lie
        if self.password and authorization != "Bearer good":
            realm = f'Bearer realm="http://{self.address}/token",service="loopback",scope="repository:team/models:pull"'
            return 401, {"WWW-Authenticate": realm}, b""
        kind, _, reference = path.partition("/v2/team/models/")[2].partition("/")
        found = (self.manifests if kind == "manifests" else self.blobs).get(reference)
        if found is None:
            return 404, {}, b"{}"
        return 200, {"Docker-Content-Digest": name_bytes(found)} if kind == "manifests" else {}, found

    def _give_token(self, authorization: str) -> Answer:
        if authorization != "Basic " + base64.b64encode(f"ferry:{self.password}".encode()).decode():
            return 401, {}, b""
        return 200, {}, b'{"token": "good"}'


def push_over_http(address: str, tag: str, *layers: PushedLayer) -> str:
    """Push an image to a real registry, as its clients do; the digest of the manifest."""
    connection = http.client.HTTPConnection(address, timeout=20)

    def ask(method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream") -> http.client.HTTPResponse:
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 300, (path, answer.status, text)
        return answer

    for data in (b"{}", *(layer.data for layer in layers)):
        place = ask("POST", "/v2/team/models/blobs/uploads/").getheader("Location") or ""
        ask("PUT", f"{place}{'&' if '?' in place else '?'}digest={name_bytes(data)}", data)
    manifest = write_manifest(list(layers))
    ask("PUT", f"/v2/team/models/manifests/{tag}", manifest, MANIFEST)
    connection.close()
    return name_bytes(manifest)
