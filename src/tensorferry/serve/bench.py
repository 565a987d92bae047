"""Measures any server of the Open Inference Protocol: a closed loop at several concurrencies, over REST or gRPC.

Every loop sends its next request when it has its last answer, so throughput and latency belong together. The client is one
process: where it takes a whole core, it measures itself; `client_cpu_seconds` tells.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import httptools
import numpy as np
import orjson

from tensorferry.errors import BadOption
from tensorferry.extras import load_extra
from tensorferry.serve.core.tensors import DTYPES, Array, encode_bytes, encode_json
from tensorferry.serve.proto import inference as pb
from tensorferry.units import format_seconds

_WARM_SECONDS = 0.3
_SCHEMES = ("http", "https", "grpc", "grpcs")
TABLE_HEADER = f"{'concurrency':>11}  {'requests/s':>10}  {'p50':>9}  {'p95':>9}  {'p99':>9}  {'errors':>6}  {'client CPU':>10}"
_MAX_NUM_CHARACTERS = 300  # of an answer that an error quotes


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured, and how."""

    url: str  # http://host:port, https://... or grpc://host:port
    model: str
    version: str = ""
    num_rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # for sizes that the model leaves open
    api_key: str = ""
    seconds: float = 5.0
    as_json: bool = False  # REST only: tensors inside the JSON instead of behind it


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One concurrency: requests that were answered, and how long they took."""

    concurrency: int
    seconds: float
    num_requests: int
    num_errors: int
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    client_cpu_seconds: float

    @property
    def throughput(self) -> float:
        """Answered requests a second."""
        return self.num_requests / self.seconds


@dataclass(slots=True)
class Tally:
    """What the loops of one measurement have seen."""

    end: float
    latencies: list[float] = field(default_factory=list)
    num_errors: int = 0


def measure(target: Target, concurrencies: list[int], on_each: Callable[[LoadResult], None] = lambda _: None) -> list[LoadResult]:
    """Measure each concurrency in turn; `on_each` hears of every result when it is there."""
    import uvloop

    _check_url(target.url)
    return uvloop.run(_measure_all(target, concurrencies, on_each))


async def _measure_all(target: Target, concurrencies: list[int], on_each: Callable[[LoadResult], None]) -> list[LoadResult]:
    runner = _run_grpc if target.url.startswith("grpc") else _run_http
    results = []
    for concurrency in concurrencies:
        await runner(target, concurrency, _WARM_SECONDS)
        cpu, start = time.process_time(), time.perf_counter()
        tally = await runner(target, concurrency, target.seconds)
        seconds = time.perf_counter() - start
        if not tally.latencies:
            raise BadOption(f"{target.url} answered none of {tally.num_errors} requests for the model '{target.model}'")
        p50, p95, p99 = np.percentile(tally.latencies, (50, 95, 99))
        results.append(
            LoadResult(concurrency, seconds, len(tally.latencies), tally.num_errors, p50, p95, p99, time.process_time() - cpu)
        )
        on_each(results[-1])
    return results


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        is_whole = False
    if not is_whole:
        raise BadOption(
            f"cannot use the address {url!r}; expected {', '.join(_SCHEMES)} with host and port, as http://localhost:8000"
        )


def make_inputs(metadata: Mapping[str, Any], max_batch_size: int, target: Target) -> dict[str, Array]:
    """Random inputs as a model's metadata wants them; integers and text are small and harmless."""
    random = np.random.default_rng(0)
    inputs = {}
    for tensor in metadata["inputs"]:
        name, datatype = tensor["name"], tensor["datatype"]
        shape = list(map(int, tensor["shape"]))
        if max_batch_size:
            shape[0] = target.num_rows
        if name in target.shapes:
            shape[1 if max_batch_size else 0 :] = target.shapes[name]
        if any(size < 0 for size in shape):
            raise BadOption(f"the input '{name}' has the shape {shape}; say its open sizes with --shape {name}:SIZE,...")
        inputs[name] = _make_input(datatype, shape, random)
    return inputs


def _make_input(datatype: str, shape: list[int], random: np.random.Generator) -> Array:
    if datatype == "BYTES":
        return np.full(shape, b"ferry", np.object_)
    if datatype.startswith(("FP", "BF")):
        return random.random(shape, np.float32).astype(DTYPES[datatype])
    return random.integers(0, 2, shape).astype(DTYPES[datatype])


def make_json_body(inputs: Mapping[str, Array], datatypes: Mapping[str, str]) -> bytes:
    """An inference request with its tensors in the JSON."""
    tensors = [
        {"name": name, "datatype": datatypes[name], "shape": array.shape, "data": encode_json(array, name)}
        for name, array in inputs.items()
    ]
    return orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)


def make_binary_body(inputs: Mapping[str, Array], datatypes: Mapping[str, str]) -> tuple[bytes, int]:
    """An inference request with its tensors behind the JSON, and the length of the JSON."""
    data = {name: encode_bytes(array) for name, array in inputs.items()}
    tensors = [
        {
            "name": name,
            "datatype": datatypes[name],
            "shape": array.shape,
            "parameters": {"binary_data_size": len(data[name])},
        }
        for name, array in inputs.items()
    ]
    head = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    return b"".join([head, *data.values()]), len(head)


# ---- REST ------------------------------------------------------------------------------------------------------------------


class HttpLoop(asyncio.Protocol):
    """One connection that sends a request whenever it has an answer."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self.request = request
        self.tally = tally
        self.body: list[bytes] = []
        self.finished = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self.sent_at = 0.0

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self._send()

    def data_received(self, data: bytes) -> None:
        """A part of an answer; what is no HTTP counts as none and is kept for whoever wants to see it."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.on_body(b"no HTTP, it begins with " + repr(data[:20]).encode())
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """The server closed."""
        if not self.finished.done():
            self.tally.num_errors += self.sent_at > 0
            self.finished.set_result(b"".join(self.body))

    def on_body(self, body: bytes) -> None:
        """Kept for the one answer that metadata needs, dropped otherwise."""
        if self.tally.end == math.inf:
            self.body.append(body)

    def on_message_complete(self) -> None:
        """A whole answer."""
        now = time.perf_counter()
        if self.parser.get_status_code() == 200:
            self.tally.latencies.append(now - self.sent_at)
        else:
            self.tally.num_errors += 1
        if now < self.tally.end < math.inf:
            self._send()
        else:
            self.sent_at = 0.0
            self.transport.close()

    def _send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)


async def _run_http(target: Target, concurrency: int, seconds: float) -> Tally:
    request = await _make_http_request(target)
    tally = Tally(time.perf_counter() + seconds)
    loops = [await _connect(target, request, tally) for _ in range(concurrency)]
    await asyncio.gather(*(loop.finished for loop in loops))
    return tally


async def _make_http_request(target: Target) -> bytes:
    path = f"/v2/models/{quote(target.model)}" + (f"/versions/{quote(target.version)}" if target.version else "")
    metadata = await _get(target, path)
    try:
        config = await _get(target, f"{path}/config")
    except BadOption:
        config = {}  # not every server has this extension
    inputs = make_inputs(metadata, int(config.get("max_batch_size", 0)), target)
    datatypes = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
    if target.as_json:
        body = make_json_body(inputs, datatypes)
        form = "content-type: application/json\r\n"
    else:
        body, header_length = make_binary_body(inputs, datatypes)
        form = f"content-type: application/octet-stream\r\ninference-header-content-length: {header_length}\r\n"
    host = urlsplit(target.url).netloc
    head = f"POST {path}/infer HTTP/1.1\r\nhost: {host}\r\n{form}content-length: {len(body)}\r\n{_key(target)}\r\n"
    return head.encode() + body


async def _get(target: Target, path: str) -> dict[str, Any]:
    request = f"GET {path} HTTP/1.1\r\nhost: {urlsplit(target.url).netloc}\r\n{_key(target)}\r\n".encode()
    tally = Tally(math.inf)
    body = await (await _connect(target, request, tally)).finished
    try:
        found = None if tally.num_errors else orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        said = " ".join(body.decode(errors="replace").split())[:_MAX_NUM_CHARACTERS]
        raise BadOption(f"{target.url} does not answer {path}: {said or 'it closed the connection'}")
    return found


async def _connect(target: Target, request: bytes, tally: Tally) -> HttpLoop:
    parts = urlsplit(target.url)
    is_tls = parts.scheme == "https"
    try:
        _, protocol = await asyncio.get_running_loop().create_connection(
            lambda: HttpLoop(request, tally), parts.hostname or "", parts.port or (443 if is_tls else 80), ssl=is_tls or None
        )
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        raise BadOption(f"cannot reach {target.url}: {error}") from None
    return protocol


def _key(target: Target) -> str:
    return f"authorization: Bearer {target.api_key}\r\n" if target.api_key else ""


# ---- gRPC ------------------------------------------------------------------------------------------------------------------


async def _run_grpc(target: Target, concurrency: int, seconds: float) -> Tally:
    grpc: Any = load_extra("grpc", "measuring over gRPC", "grpc")
    parts = urlsplit(target.url)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    open_channel: Any = grpc.aio.insecure_channel
    if parts.scheme == "grpcs":
        open_channel = partial(grpc.aio.secure_channel, credentials=grpc.ssl_channel_credentials())
    metadata = (("authorization", f"Bearer {target.api_key}"),) if target.api_key else None
    async with open_channel(parts.netloc, options=options) as channel:

        def method(name: str, kind: Any) -> Callable[[Any], Awaitable[Any]]:
            call = channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}",
                request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
                response_deserializer=kind.FromString,
            )
            return lambda message: call(message, metadata=metadata)

        try:
            found = await method("ModelMetadata", pb.ModelMetadataResponse)(
                pb.ModelMetadataRequest(name=target.model, version=target.version)
            )
            config = await method("ModelConfig", pb.ModelConfigResponse)(
                pb.ModelConfigRequest(name=target.model, version=target.version)
            )
        except grpc.aio.AioRpcError as error:
            said = " ".join((error.details() or "").split())[:_MAX_NUM_CHARACTERS]
            raise BadOption(f"{target.url} does not tell of the model '{target.model}': {said or error.code().name}") from None
        tensors = [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in found.inputs]
        inputs = make_inputs({"inputs": tensors}, config.config.max_batch_size, target)
        request = _make_grpc_request(target, tensors, inputs)
        infer = method("ModelInfer", pb.ModelInferResponse)
        tally = Tally(time.perf_counter() + seconds)
        await asyncio.gather(*(_loop_grpc(infer, request, tally, grpc.aio.AioRpcError) for _ in range(concurrency)))
        return tally


def _make_grpc_request(target: Target, tensors: list[dict[str, Any]], inputs: Mapping[str, Array]) -> bytes:
    request = pb.ModelInferRequest(model_name=target.model, model_version=target.version)
    for tensor in tensors:
        array = inputs[tensor["name"]]
        request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=array.shape)
        request.raw_input_contents.append(encode_bytes(array))
    serialized: bytes = request.SerializeToString()
    return serialized


async def _loop_grpc(infer: Callable[[Any], Awaitable[Any]], request: bytes, tally: Tally, error: type[Exception]) -> None:
    while (sent_at := time.perf_counter()) < tally.end:
        try:
            await infer(request)
            tally.latencies.append(time.perf_counter() - sent_at)
        except error:
            tally.num_errors += 1


def format_row(result: LoadResult) -> str:
    """One line under `TABLE_HEADER`."""
    share = result.client_cpu_seconds / result.seconds
    return (
        f"{result.concurrency:>11}  {result.throughput:>10.1f}  {format_seconds(result.p50_seconds):>9}  "
        f"{format_seconds(result.p95_seconds):>9}  {format_seconds(result.p99_seconds):>9}  "
        f"{result.num_errors:>6}  {share:>10.0%}"
    )
