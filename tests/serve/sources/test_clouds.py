"""Google's and Azure's stores through obstore: the same mirror, another client behind it."""

import base64
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
from object_server import SIGNATURE, Environ, ObjectServer

from tensorferry.serve.sources import open_mirror
from tensorferry.serve.sources.source import SourceFailed

LARGE = 2**30
ACCOUNT = "devstoreaccount1"  # what every Azurite has, with a key that is printed in its manual
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_googles_client_reads_follows_and_explains(s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = []

    def let_in(environ: Environ) -> None:
        """S3 wants a signature of every client; the calls of Google's XML interface are the same otherwise."""
        environ.setdefault("HTTP_AUTHORIZATION", SIGNATURE)
        conditions.append(environ.get("HTTP_IF_MATCH"))

    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{s3.port}")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    s3.put("google/net/1/model.onnx", b"one")
    s3.fault = let_in
    try:
        mirror = open_mirror("gs://bucket/google", tmp_path, LARGE)
        assert read_tree(mirror.update()) == {"net/1/model.onnx": b"one"}
        assert any(conditions)
        s3.put("google/net/1/model.onnx", b"two")
        assert read_tree(mirror.update()) == {"net/1/model.onnx": b"two"}
        mirror.close()
        with pytest.raises(SourceFailed, match="cannot list gs://missing/models: there is no such bucket"):
            open_mirror("gs://missing/models", tmp_path / "missing", LARGE)
    finally:
        s3.fault = None


@contextmanager
def run_azurite(folder: Path) -> Iterator[int]:
    """The port of an Azurite with one container, `bucket`."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite (npm install -g azurite)")
    command = [program, "--blobPort", "0", "--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"listens on http://.*:(\d+)", line)))
            date = formatdate(usegmt=True)
            signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2023-11-03\n/{ACCOUNT}/{ACCOUNT}/bucket\nrestype:container"
            signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            headers = {"x-ms-date": date, "x-ms-version": "2023-11-03", "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
            connection.request("PUT", f"/{ACCOUNT}/bucket?restype=container", headers=headers)
            assert connection.getresponse().status == 201
            connection.close()
            yield port
        finally:
            server.terminate()


def test_azurites_blobs_are_read_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_azurite(tmp_path / "azurite") as port:
        monkeypatch.setenv("AZURE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        from obstore.store import AzureStore

        blobs = AzureStore("bucket", client_options={"allow_http": True})
        blobs.put("models/net/1/model.onnx", b"one")
        mirror = open_mirror("az://bucket/models", tmp_path / "cache", LARGE)
        assert read_tree(mirror.update()) == {"net/1/model.onnx": b"one"}
        blobs.put("models/net/1/model.onnx", b"two")
        assert read_tree(mirror.update()) == {"net/1/model.onnx": b"two"}
        mirror.close()
        with pytest.raises(SourceFailed, match="there is no such bucket"):
            open_mirror("az://missing/models", tmp_path / "missing", LARGE)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
        with pytest.raises(SourceFailed, match="access is denied"):
            open_mirror("az://bucket/models", tmp_path / "denied", LARGE)
