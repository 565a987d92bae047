"""The gRPC service, each call a translation to the data plane."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.dataplane import DataPlane
from tensorferry.serve.describe import describe_model, describe_statistics
from tensorferry.serve.faults import (
    Conflict,
    Denied,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tensorferry.serve.keys import ApiKeys
from tensorferry.serve.logs import log_request
from tensorferry.serve.requests import InferRequest
from tensorferry.serve.rpc.infer import read_request, write_response
from tensorferry.serve.tracing import HEADER, Trace, read_trace

_LOG = logging.getLogger("tensorferry.serve")
_SERVICE = "inference.GRPCInferenceService"
_OPEN = frozenset({"ServerLive", "ServerReady", "ModelReady"})  # answered without a key, for probes
_MAX_STREAM_AHEAD = 64  # requests of one stream that may be under way
_CODES: dict[type[FerryError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    BadModel: grpc.StatusCode.INVALID_ARGUMENT,
    Denied: grpc.StatusCode.UNAUTHENTICATED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
Call = Callable[[Any], Awaitable[Any]]


class Service:
    """Answers gRPC calls out of the data plane."""

    def __init__(self, plane: DataPlane, keys: ApiKeys | None) -> None:
        self.plane = plane
        self.keys = keys

    def make_handler(self) -> grpc.GenericRpcHandler:
        """What a grpc.aio server is given."""
        calls: dict[str, tuple[Any, Call]] = {
            "ServerLive": (pb.ServerLiveRequest, self.server_live),
            "ServerReady": (pb.ServerReadyRequest, self.server_ready),
            "ModelReady": (pb.ModelReadyRequest, self.model_ready),
            "ServerMetadata": (pb.ServerMetadataRequest, self.server_metadata),
            "ModelMetadata": (pb.ModelMetadataRequest, self.model_metadata),
            "ModelConfig": (pb.ModelConfigRequest, self.model_config),
            "ModelStatistics": (pb.ModelStatisticsRequest, self.model_statistics),
            "RepositoryIndex": (pb.RepositoryIndexRequest, self.repository_index),
            "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, self.model_load),
            "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, self.model_unload),
            "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest, self.shared_memory_status),
            "SystemSharedMemoryRegister": (pb.SystemSharedMemoryRegisterRequest, self.shared_memory_register),
            "SystemSharedMemoryUnregister": (pb.SystemSharedMemoryUnregisterRequest, self.shared_memory_unregister),
            "CudaSharedMemoryStatus": (pb.CudaSharedMemoryStatusRequest, self.cuda_status),
            "CudaSharedMemoryRegister": (pb.CudaSharedMemoryRegisterRequest, self.cuda_register),
            "CudaSharedMemoryUnregister": (pb.CudaSharedMemoryUnregisterRequest, self.cuda_unregister),
            "TraceSetting": (pb.TraceSettingRequest, self.trace_setting),
            "LogSettings": (pb.LogSettingsRequest, self.log_settings),
        }
        # requests are parsed inside the call: a message that is no message is the client's fault, not the server's
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guard(name, kind, call), response_serializer=lambda message: message.SerializeToString()
            )
            for name, (kind, call) in calls.items()
        }
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        return grpc.method_handlers_generic_handler(_SERVICE, handlers)

    # ---- inference ---------------------------------------------------------------------------------------------------

    async def _infer(self, data: bytes, context: Any) -> bytes:
        try:
            trace = self._begin(context, "ModelInfer")
            if trace is not None:
                context.set_trailing_metadata(((HEADER, trace.header),))
            return (await self._infer_message(_parse(pb.ModelInferRequest, data), trace)).SerializeToString()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await _abort(context, error)
            raise

    async def _infer_message(self, message: Any, trace: Trace | None) -> Any:
        request = read_request(message, self.plane.regions)
        started = time.perf_counter()
        status = "OK"
        try:
            return write_response(await self.plane.infer(request))
        except FerryError as fault:
            status = _code_of(fault).name
            raise
        finally:
            self._log(request, status, time.perf_counter() - started, trace)

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers in the order of the requests; those that wait are under way together, and so share batches."""
        try:
            trace = self._begin(context, "ModelStreamInfer")
        except FerryError as error:
            await _abort(context, error)
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(_MAX_STREAM_AHEAD)

        async def read() -> None:
            try:
                async for data in messages:
                    await answers.put(asyncio.create_task(self._stream_answer(data, trace)))
            finally:
                await answers.put(None)

        reader = asyncio.create_task(read())
        answer: asyncio.Task[bytes] | None = None
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
        finally:
            reader.cancel()
            left: list[asyncio.Task[bytes] | None] = [answer]
            while not answers.empty():
                left.append(answers.get_nowait())
            for task in left:
                if task is not None:
                    task.cancel()

    async def _stream_answer(self, data: bytes, trace: Trace | None) -> bytes:
        message = None
        try:
            message = _parse(pb.ModelInferRequest, data)
            response = pb.ModelStreamInferResponse(infer_response=await self._infer_message(message, trace))
        except Exception as error:
            if not isinstance(error, FerryError):
                _LOG.exception("an error of the server itself")
            response = pb.ModelStreamInferResponse(error_message=str(error))
            if message is not None:  # clients tell by the id which of their requests failed
                response.infer_response.id = message.id
                response.infer_response.model_name = message.model_name
        return response.SerializeToString()

    def _log(self, request: InferRequest, status: str, seconds: float, trace: Trace | None) -> None:
        settings = self.plane.settings
        if settings.is_verbose or settings.is_traced(request.model_name):
            log_request(request, "grpc", status, seconds, trace)

    # ---- everything else ---------------------------------------------------------------------------------------------

    async def server_live(self, request: Any) -> Any:
        """Whether the server answers at all."""
        _ = request
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any) -> Any:
        """Whether it takes inferences."""
        _ = request
        return pb.ServerReadyResponse(ready=self.plane.is_ready)

    async def model_ready(self, request: Any) -> Any:
        """Whether a model does."""
        return pb.ModelReadyResponse(ready=self.plane.is_model_ready(request.name, request.version))

    async def server_metadata(self, request: Any) -> Any:
        """Who answers."""
        _ = request
        metadata = self.plane.metadata
        return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)

    async def model_metadata(self, request: Any) -> Any:
        """What a model takes and gives."""
        model = self.plane.find(request.name, request.version)
        return pb.ModelMetadataResponse(**describe_model(model, self.plane.repository.versions_of(request.name)))

    async def model_config(self, request: Any) -> Any:
        """A model's complete configuration."""
        return pb.ModelConfigResponse(config=self.plane.find(request.name, request.version).config)

    async def model_statistics(self, request: Any) -> Any:
        """What models have done so far."""
        models = self.plane.find_for_statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(**describe_statistics(model)) for model in models])

    async def repository_index(self, request: Any) -> Any:
        """Every model of the repository."""
        lines = self.plane.index(request.ready)
        index = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[index(name=line.name, version=line.version, state=str(line.state), reason=line.reason) for line in lines]
        )

    async def model_load(self, request: Any) -> Any:
        """Load or reload a model."""
        parameters = request.parameters
        files = {key: value.bytes_param for key, value in parameters.items() if key.startswith("file:")}
        config = parameters["config"].string_param if "config" in parameters else ""
        await self.plane.load(request.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def model_unload(self, request: Any) -> Any:
        """Take a model out of service."""
        parameters = request.parameters
        with_parts = "unload_dependents" in parameters and parameters["unload_dependents"].bool_param
        await self.plane.unload(request.model_name, with_parts)
        return pb.RepositoryModelUnloadResponse()

    async def shared_memory_status(self, request: Any) -> Any:
        """The registered regions."""
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self.plane.regions.status(request.name):
            line = response.regions[region.name]
            line.name, line.key, line.offset, line.byte_size = region.name, region.key, region.offset, region.nbytes
        return response

    async def shared_memory_register(self, request: Any) -> Any:
        """Register a region."""
        if not request.name:
            raise InvalidRequest("a region needs a name")
        self.plane.regions.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def shared_memory_unregister(self, request: Any) -> Any:
        """Forget a region, or all."""
        self.plane.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(self, request: Any) -> Any:
        """There are none."""
        _ = request
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_register(self, request: Any) -> Any:
        """Not here."""
        _ = request
        raise Unsupported("this server has no CUDA shared memory; register system shared memory instead")

    async def cuda_unregister(self, request: Any) -> Any:
        """Nothing to forget."""
        _ = request
        return pb.CudaSharedMemoryUnregisterResponse()

    async def trace_setting(self, request: Any) -> Any:
        """Read or change the trace settings."""
        if request.model_name:
            self.plane.find(request.model_name, "")
        changes = {key: list(value.value) or None for key, value in request.settings.items()}
        found = self.plane.settings.update_trace(request.model_name, changes)
        response = pb.TraceSettingResponse()
        for key, values in found.items():
            response.settings[key].value.extend(values)
        return response

    async def log_settings(self, request: Any) -> Any:
        """Read or change the log settings."""
        changes = {
            key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in request.settings.items()
        }
        response = pb.LogSettingsResponse()
        for key, value in self.plane.settings.update_log(changes).items():
            field = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else "string_param"
            setattr(response.settings[key], field, value)
        return response

    # ---- around every call -------------------------------------------------------------------------------------------

    def _guard(self, name: str, kind: Any, call: Call) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def guarded(data: bytes, context: Any) -> Any:
            try:
                self._begin(context, name)
                return await call(_parse(kind, data))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                await _abort(context, error)

        return guarded

    def _begin(self, context: Any, name: str) -> Trace | None:
        """Check the key, and tell the trace that the call belongs to."""
        metadata = context.invocation_metadata()
        sent = parent = ""
        for key, value in metadata or ():
            if key in ("authorization", "x-api-key"):
                sent = value
            elif key == HEADER:
                parent = value
        if self.keys is not None and name not in _OPEN:
            self.keys.check(sent)
        return read_trace(parent) if parent else None


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def _code_of(error: Exception) -> grpc.StatusCode:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


async def _abort(context: Any, error: Exception) -> None:
    if not isinstance(error, FerryError):
        _LOG.error("an error of the server itself", exc_info=error)
    await context.abort(_code_of(error), str(error))
