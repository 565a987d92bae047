"""A real S3 server on loopback: moto's, with a place to put faults in front of it."""

import http.client
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SIGNATURE = "AWS4-HMAC-SHA256 Credential=ferry/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
Environ = dict[str, Any]
Fault = Callable[[Environ], tuple[str, bytes] | None]  # the status and body to answer with, instead of the server's own


class ObjectServer:
    """S3 with one bucket; `fault` is asked before every request."""

    def __init__(self) -> None:
        self.app = DomainDispatcherApplication(create_backend_app)
        self.fault: Fault | None = None
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.send("PUT", "/bucket")

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "ferry",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def put(self, path: str, data: bytes) -> None:
        """Write an object of the bucket."""
        assert self.send("PUT", f"/bucket/{path}", data) == 200

    def delete(self, path: str) -> None:
        """Remove an object of the bucket."""
        assert self.send("DELETE", f"/bucket/{path}") == 204

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Write every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def send(self, method: str, path: str, data: bytes = b"") -> int:
        """The status of a request; its path goes as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, data, {"content-type": "application/octet-stream", "authorization": SIGNATURE})
        status = connection.getresponse().status
        connection.close()
        return status

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def _answer(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = None if self.fault is None else self.fault(environ)
        if answer is None:
            return self.app(environ, start_response)
        status, body = answer
        start_response(status, [("content-length", str(len(body))), ("content-type", "application/xml")])
        return [body]
