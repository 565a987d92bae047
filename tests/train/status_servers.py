"""Kubeflow's status server as far as a training sees it: HTTPS, a token, and statuses in JSON."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from certificates import make_certificate


class StatusServer:
    """What a pod gets to know of it, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        certificate, key = make_certificate(folder)
        token = folder / "token"
        token.write_text("secret\n")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.tokens.add(self.headers["Authorization"])
                outer.statuses.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["trainerStatus"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{self.server.server_port}/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        }


@contextmanager
def run_status_server(folder: Path) -> Iterator[StatusServer]:
    """A server while inside."""
    found = StatusServer(folder)
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        thread.join()
        found.server.server_close()
