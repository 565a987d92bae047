"""The services that gRPC itself defines: health, which load balancers and Kubernetes ask, and reflection, which tools ask."""

import asyncio
from collections.abc import Iterator
from typing import Any

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import NotFound, TooLarge
from tensorferry.serve.core.limits import MAX_WATCHES
from tensorferry.serve.grpc.calls import Call
from tensorferry.serve.grpc.messages import Status, parse
from tensorferry.serve.proto import POOL, health, reflection

HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_LOOK_SECONDS = 0.5
_MAX_QUESTION_NBYTES = 4096
_MAX_UNREAD_NBYTES = 64 * 1024  # of a reflection's answers: beyond it, a client must read before it asks again


class Health:
    """Tells of the server's readiness."""

    def __init__(self, plane: DataPlane, services: frozenset[str]) -> None:
        self.plane = plane
        self.services = services  # empty: the whole server
        self.watchers: set[Watcher] = set()
        self.timer: asyncio.TimerHandle | None = None

    def check(self, call: Call, data: bytes) -> None:
        """The status now."""
        status = self.find(parse(health.HealthCheckRequest, data).service)
        if status == SERVICE_UNKNOWN:
            raise NotFound("unknown service")
        call.reply(health.HealthCheckResponse(status=status).SerializeToString())

    def watch(self, call: Call, data: bytes) -> None:
        """The status now, and whenever it changes."""
        if len(self.watchers) >= MAX_WATCHES:
            raise TooLarge(f"{MAX_WATCHES} calls of Watch are open, which is the most this server takes")
        watcher = Watcher(self, call, parse(health.HealthCheckRequest, data).service)
        self.watchers.add(watcher)
        call.work = watcher
        watcher.tell(self.find(watcher.service))
        if self.timer is None:
            self._look()

    def _look(self) -> None:
        """Look now and then, for all clients together, and only while there are any."""
        self.timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look) if self.watchers else None
        for watcher in list(self.watchers):
            watcher.tell(self.find(watcher.service))
            if self.plane.is_draining:
                watcher.call.finish()  # an endless call must not hold up the end

    def find(self, service: str) -> int:
        """The status of a service."""
        if service not in self.services:
            return SERVICE_UNKNOWN
        return SERVING if self.plane.is_ready else NOT_SERVING


class Watcher:
    """One client that is told of every change."""

    def __init__(self, owner: Health, call: Call, service: str) -> None:
        self.owner = owner
        self.call = call
        self.service = service
        self.told: int | None = None

    def cancel(self) -> None:
        """The client has gone."""
        self.owner.watchers.discard(self)

    def tell(self, status: int) -> None:
        """Send the status where it is news."""
        if status != self.told:
            self.told = status
            self.call.send(health.HealthCheckResponse(status=status).SerializeToString())


class Reflection:
    """ServerReflectionInfo: which services there are, and the files that describe their messages."""

    __slots__ = ("call", "plane", "services")

    is_unary = False

    def __init__(self, plane: DataPlane, services: tuple[str, ...], call: Call) -> None:
        self.plane = plane
        self.call = call
        self.services = services

    @property
    def wants_more(self) -> bool:
        """Whether the answers so far are read."""
        return self.call.stream.num_pending_nbytes < _MAX_UNREAD_NBYTES

    def take(self, message: bytes) -> None:
        """Answer one question."""
        if len(message) > _MAX_QUESTION_NBYTES:
            raise TooLarge(f"a question of {len(message)} bytes, the most this server takes is {_MAX_QUESTION_NBYTES}")
        request = parse(reflection.ServerReflectionRequest, message)
        response = reflection.ServerReflectionResponse(valid_host=request.host, original_request=request)
        self._answer(request, response)
        self.call.send(response.SerializeToString())

    def end(self) -> None:
        """There are no more questions."""
        self.call.finish()

    def sent(self) -> None:
        """Nothing waits for that."""

    def cancel(self) -> None:
        """Nothing is under way."""

    def drain(self) -> None:
        """Where the server itself ends, nothing is lost by ending here."""
        if self.plane.is_draining:
            self.call.finish(Status.UNAVAILABLE, "the server is shutting down")

    def _answer(self, request: Any, response: Any) -> None:
        kind = request.WhichOneof("message_request")
        try:
            match kind:
                case "list_services":
                    for name in self.services:
                        response.list_services_response.service.add(name=name)
                case "file_by_filename":
                    _describe(POOL.FindFileByName(request.file_by_filename), response)
                case "file_containing_symbol":
                    _describe(POOL.FindFileContainingSymbol(request.file_containing_symbol), response)
                case "all_extension_numbers_of_type":
                    name = request.all_extension_numbers_of_type
                    response.all_extension_numbers_response.base_type_name = POOL.FindMessageTypeByName(name).full_name
                case _:
                    raise KeyError
        except KeyError:
            response.error_response.error_code = Status.NOT_FOUND
            response.error_response.error_message = f"nothing is known of that {kind}" if kind else "the request is empty"


def _describe(file: Any, response: Any) -> None:
    """Give a file, and those that it imports."""
    found = {each.name: each.serialized_pb for each in _with_imports(file)}
    response.file_descriptor_response.file_descriptor_proto.extend(found.values())


def _with_imports(file: Any) -> Iterator[Any]:
    yield file
    for imported in file.dependencies:
        yield from _with_imports(imported)
