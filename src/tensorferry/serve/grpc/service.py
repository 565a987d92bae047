"""The gRPC service: which call is answered by what, and who may make it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tensorferry.serve.core.access import Access
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.describe import describe_model, describe_statistics
from tensorferry.serve.core.faults import InvalidRequest, Unsupported
from tensorferry.serve.core.limits import INLINE_NBYTES, MAX_CONTROL_NBYTES
from tensorferry.serve.grpc.calls import Call, Listener, Run, Unary
from tensorferry.serve.grpc.headers import CallHeaders, write_first_block
from tensorferry.serve.grpc.infer_messages import count_fields
from tensorferry.serve.grpc.inference import infer
from tensorferry.serve.grpc.messages import Status, parse
from tensorferry.serve.grpc.standard_services import HEALTH, REFLECTIONS, Health, Reflection
from tensorferry.serve.grpc.stream_inference import StreamInfer
from tensorferry.serve.grpc.streams import Stream
from tensorferry.serve.proto import inference as pb

Answer = Callable[[Any], Awaitable[Any]]
_SERVICE = "inference.GRPCInferenceService"
_OPEN = frozenset({"ServerLive", "ServerReady", "ModelReady"})  # answered without a key, for probes
_WITH_DATA = frozenset({"ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"})  # messages of others are small
_CONTROL = frozenset(
    (
        *("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
        *(f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")),
    )
)
_NOT_POST = write_first_block([(b":status", b"405"), (b"allow", b"POST")])
_NOT_GRPC = write_first_block([(b":status", b"415")])


class Service:
    """Answers gRPC calls out of the data plane."""

    def __init__(self, plane: DataPlane, access: Access, max_message_nbytes: int) -> None:
        self.access = access
        self.max_message_nbytes = max_message_nbytes
        self.max_control_nbytes = min(MAX_CONTROL_NBYTES, max_message_nbytes)
        services = (_SERVICE, HEALTH, *REFLECTIONS)
        probe = Health(plane, frozenset({"", *services}))
        runs: dict[str, Run] = {
            f"/{_SERVICE}/{name}": partial(_answer_later, kind, answer)
            for name, (kind, answer) in Methods(plane).list_methods().items()
        }
        runs[f"/{_SERVICE}/ModelInfer"] = partial(infer, plane)
        runs[f"/{HEALTH}/Check"] = probe.check
        runs[f"/{HEALTH}/Watch"] = probe.watch
        self.listeners: dict[str, Callable[[Call], Listener]] = {path: partial(Unary, run=run) for path, run in runs.items()}
        self.listeners[f"/{_SERVICE}/ModelStreamInfer"] = partial(StreamInfer, plane)
        for name in REFLECTIONS:
            self.listeners[f"/{name}/ServerReflectionInfo"] = partial(Reflection, plane, services)
        self.data_paths = {f"/{_SERVICE}/{name}" for name in _WITH_DATA}
        self.control_paths = {f"/{_SERVICE}/{name}" for name in _CONTROL}
        self.open_paths = {f"/{_SERVICE}/{name}" for name in _OPEN} | {f"/{HEALTH}/{name}" for name in ("Check", "Watch")}

    def open(self, stream: Stream, headers: CallHeaders) -> Call:
        """Begin a call, or end it at once."""
        call = Call(stream, headers, self.max_message_nbytes if headers.path in self.data_paths else self.max_control_nbytes)
        if headers.method != "POST":
            call.refuse(_NOT_POST)
        elif not _is_grpc(headers.content_type):
            call.refuse(_NOT_GRPC)
        else:
            try:
                call.start(self._find(headers)(call))
            except Exception as error:
                call.fail(error)
        return call

    def refuse(self, stream: Stream, message: str) -> None:
        """End a call whose metadata are too large."""
        Call(stream, CallHeaders("", ""), 0).finish(Status.RESOURCE_EXHAUSTED, message)

    def _find(self, headers: CallHeaders) -> Callable[[Call], Listener]:
        listener = self.listeners.get(headers.path)
        if listener is None:
            raise Unsupported(f"this server has no method {headers.path[:200]}")
        self.access.hosts.check(headers.authority)
        if headers.origin:  # a browser's, which can speak no gRPC but to what it takes for its own site
            self.access.hosts.check(headers.origin.partition("://")[2])
        is_open = headers.path in self.open_paths
        self.access.check(headers.key, is_control=headers.path in self.control_paths, needs_key=not is_open)
        return listener


def _is_grpc(content_type: str) -> bool:
    kind, _, _ = content_type.lower().partition(";")
    return kind.strip() == "application/grpc" or kind.startswith("application/grpc+")


def _answer_later(kind: Any, answer: Answer, call: Call, data: bytes) -> None:
    call.work = asyncio.get_running_loop().create_task(_answer(call, answer, kind, data))


async def _answer(call: Call, answer: Answer, kind: Any, data: bytes) -> None:
    try:
        if len(data) <= INLINE_NBYTES:
            request = parse(kind, data)
        else:
            count_fields(data)
            call.stream.charge.add(len(data))
            request = await asyncio.to_thread(parse, kind, data)
        message = await answer(request)
        call.reply(message.SerializeToString())
    except Exception as error:
        call.work = None  # it is this task, which ends by itself
        call.fail(error)


class Methods:
    """Answers a request's message with the message that the protocol wants."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane

    def list_methods(self) -> dict[str, tuple[Any, Answer]]:
        """The class of the request, and what answers it, by the method's name."""
        return {
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
