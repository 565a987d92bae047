"""A model that another service runs: its inputs go there and its outputs come back, by the Open Inference Protocol.

The file (`remote.json`) names a service and a model of it. Where the service is, the environment says (`FERRY_SERVICE_NAME`), so
no file of a model can make the server call anything that its owner did not name. Requests are not merged here: the service
batches. A connection is opened again after a while, so that pods that are added later get their share.
"""

import http.client
import json
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault, TooLarge, Unavailable
from tensorferry.serve.core.tensors import DATATYPES, Array, check_datatype, check_shape, decode_bytes, encode_bytes
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.text import printable

FILENAME = "remote.json"
KEY_VARIABLE = "FERRY_SERVICE_KEYS"  # a file whose first line is the key that is sent
CERTIFICATE_VARIABLE = "FERRY_SERVICE_CA"  # a file with the authorities of https services
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TIMEOUT_SECONDS = 60.0  # for the whole answer, unless the model's configuration says otherwise
_CONNECT_SECONDS = 5.0
_MAX_CONNECTION_SECONDS = 30.0
_MAX_ANSWER_NBYTES = 256 * 2**20
_PIECE_NBYTES = 2**20
_FAULTS: dict[int, type[RequestFault]] = {
    400: InvalidRequest,
    413: TooLarge,
    429: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def variable_of(service: str) -> str:
    """The variable that says where a service is.

    >>> variable_of("image-encoder")
    'FERRY_SERVICE_IMAGE_ENCODER'
    """
    return f"FERRY_SERVICE_{service.upper().replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class Remote:
    """One model of one service, and how to get there."""

    service: str
    model: str
    scheme: str
    host: str
    port: int
    seconds: float
    key_file: Path | None
    context: ssl.SSLContext | None

    def open(self) -> http.client.HTTPConnection:
        """A connection, not yet made."""
        if self.context is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=_CONNECT_SECONDS, context=self.context)
        return http.client.HTTPConnection(self.host, self.port, timeout=_CONNECT_SECONDS)

    def headers(self) -> dict[str, str]:
        """With the key, which is read each time as it may change."""
        if self.key_file is None:
            return {}
        try:
            key = self.key_file.read_text("utf-8").split(maxsplit=1)[0]
        except (OSError, ValueError, IndexError):
            raise Unavailable(f"the key for service '{self.service}' cannot be read") from None
        return {"Authorization": f"Bearer {key}"}


def load(options: LoadOptions) -> "RemoteRuntime":
    """The model that a file names; the service is not asked before there is a request."""
    try:
        described = json.loads(options.path.read_text("utf-8"))
        service, model = str(described["service"]), str(described["model"])
        seconds = float(options.parameters.get("timeout_seconds", _TIMEOUT_SECONDS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(f"cannot read {options.path.name}: {type(error).__name__}: {error}") from None
    if not _NAME.fullmatch(service) or not 0 < seconds <= 3600:
        raise BadModel(f"{options.path.name} names the service {service[:80]!r} with {seconds:g} seconds; neither can be")
    address = os.environ.get(variable_of(service))
    if address is None:
        raise BadModel(f"nobody says where the service '{service}' is: set {variable_of(service)}, as to http://host:8000")
    parts = urlsplit(address)
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (KeyError, ValueError):
        port = 0
    if not port or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise BadModel(f"{variable_of(service)} is no address of a service; write it as http://host:8000")
    authorities = os.environ.get(CERTIFICATE_VARIABLE)
    context = ssl.create_default_context(cafile=authorities or None) if parts.scheme == "https" else None
    key_file = os.environ.get(KEY_VARIABLE)
    key_path = Path(key_file) if key_file else None
    return RemoteRuntime(Remote(service, model, parts.scheme, parts.hostname, port, seconds, key_path, context))


class RemoteRuntime:
    """Tells no signature: the configuration beside the file has it."""

    signature: Signature | None = None

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def new_runner(self) -> "RemoteRunner":
        """One more connection."""
        return RemoteRunner(self.remote)

    def close(self) -> None:
        """Nothing is held."""


class RemoteRunner:
    """One connection at a time, kept between requests."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.connection: http.client.HTTPConnection | None = None
        self.opened = 0.0

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """What the service answers."""
        body, num_head = _write_request(inputs, outputs)
        end = time.monotonic() + self.remote.seconds
        if self.connection is not None and time.monotonic() - self.opened > _MAX_CONNECTION_SECONDS:
            self.close()
        was_kept = self.connection is not None
        try:
            return self._ask(body, num_head, outputs, end)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self.close()
            if not was_kept:
                raise Unavailable(f"service '{self.remote.service}' closed the connection") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            what = "did not answer in time" if isinstance(error, TimeoutError) else "does not answer"
            raise Unavailable(f"service '{self.remote.service}' {what}: {type(error).__name__}") from None
        except BaseException:
            self.close()
            raise
        return self.run(inputs, outputs)  # a kept connection that the service had given up

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _ask(self, body: bytes, num_head: int, outputs: Sequence[str], end: float) -> list[Array]:
        remote = self.remote
        headers = remote.headers() | {
            "Inference-Header-Content-Length": str(num_head),
            "Content-Type": "application/octet-stream",
        }
        if self.connection is None:
            connection = remote.open()
            connection.connect()
            self.connection, self.opened = connection, time.monotonic()
        connection = self.connection
        _set_timeout(connection, end)
        connection.request("POST", f"/v2/models/{quote(remote.model, safe='')}/infer", body, headers)
        _set_timeout(connection, end)
        answer = connection.getresponse()
        data = _read(connection, answer, end)
        if answer.will_close:
            self.close()
        if answer.status != 200:
            fault = _FAULTS.get(answer.status, ModelFault)
            raise fault(f"service '{remote.service}': {_explain(answer.status, data)}")
        try:
            return _read_answer(data, answer.headers.get("Inference-Header-Content-Length"), outputs)
        except (InvalidRequest, ValueError, KeyError, TypeError) as error:
            raise ModelFault(f"service '{remote.service}' gave an answer that cannot be read: {error}") from None


def _set_timeout(connection: http.client.HTTPConnection, end: float) -> None:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if connection.sock is not None:
        connection.sock.settimeout(left)


def _read(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, end: float) -> bytes:
    if (answer.length or 0) > _MAX_ANSWER_NBYTES:
        raise ModelFault(f"an answer of {answer.length:,} bytes is more than the {_MAX_ANSWER_NBYTES:,} that are taken")
    pieces: list[bytes] = []
    num_bytes = 0
    while piece := answer.read1(_PIECE_NBYTES):
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > _MAX_ANSWER_NBYTES:
            raise ModelFault(f"an answer has more than the {_MAX_ANSWER_NBYTES:,} bytes that are taken")
        _set_timeout(connection, end)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    answer.close()  # not the connection: it takes the next request
    return b"".join(pieces)


def _write_request(inputs: Mapping[str, Array], outputs: Sequence[str]) -> tuple[bytes, int]:
    data = {name: encode_bytes(array) for name, array in inputs.items()}
    tensors = [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": len(data[name])},
        }
        for name, array in inputs.items()
    ]
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
    return b"".join([head, *data.values()]), len(head)


def _read_answer(data: bytes, num_head: str | None, outputs: Sequence[str]) -> list[Array]:
    at = len(data) if num_head is None else int(num_head)
    found: dict[str, Array] = {}
    for tensor in json.loads(data[:at])["outputs"]:
        name = str(tensor["name"])
        num_bytes = int(tensor["parameters"]["binary_data_size"])
        if num_bytes < 0 or at + num_bytes > len(data):
            raise ValueError("it is cut short")
        datatype, shape = check_datatype(tensor["datatype"], name), check_shape(tensor["shape"], name)
        found[name] = decode_bytes(datatype, shape, memoryview(data)[at : at + num_bytes], name)
        at += num_bytes
    return [found[name] for name in outputs]


def _explain(status: int, data: bytes) -> str:
    try:
        told: Any = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        told = f"status {status}"
    return printable(str(told))[:500]
