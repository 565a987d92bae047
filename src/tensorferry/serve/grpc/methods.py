"""Every call of the gRPC service but inference, each a translation to the data plane."""

from collections.abc import Awaitable, Callable
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.describe import describe_model, describe_statistics
from tensorferry.serve.core.faults import InvalidRequest, Unsupported

Answer = Callable[[Any], Awaitable[Any]]


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
