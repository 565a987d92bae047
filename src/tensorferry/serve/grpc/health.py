"""`grpc.health.v1.Health`, which load balancers and Kubernetes ask: the whole server, or its one service."""

import asyncio
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import NotFound, TooLarge
from tensorferry.serve.core.limits import MAX_WATCHES
from tensorferry.serve.grpc.calls import Call
from tensorferry.serve.grpc.infer_calls import parse

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_LOOK_SECONDS = 0.5


def _make_messages() -> tuple[Any, Any]:
    """The two messages, in a pool of their own: a program that also has `grpc_health` has them in the common one."""
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package="grpc.health.v1", syntax="proto3")
    file.message_type.add(name="HealthCheckRequest").field.add(name="service", number=1, label=1, type=9)  # optional string
    file.message_type.add(name="HealthCheckResponse").field.add(name="status", number=1, label=1, type=5)  # an enum, as int32
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("HealthCheckRequest", "HealthCheckResponse")
    request, response = (message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names)
    return request, response


HealthCheckRequest, HealthCheckResponse = _make_messages()


class Health:
    """Tells of the server's readiness."""

    def __init__(self, plane: DataPlane, services: frozenset[str]) -> None:
        self.plane = plane
        self.services = services  # empty: the whole server
        self.watchers: set[Watcher] = set()
        self.timer: asyncio.TimerHandle | None = None

    def check(self, call: Call, data: bytes) -> None:
        """The status now."""
        status = self.find(parse(HealthCheckRequest, data).service)
        if status == SERVICE_UNKNOWN:
            raise NotFound("unknown service")
        call.reply(HealthCheckResponse(status=status).SerializeToString())

    def watch(self, call: Call, data: bytes) -> None:
        """The status now, and whenever it changes."""
        if len(self.watchers) >= MAX_WATCHES:
            raise TooLarge(f"{MAX_WATCHES} calls of Watch are open, which is the most this server takes")
        watcher = Watcher(self, call, parse(HealthCheckRequest, data).service)
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

    def __init__(self, health: Health, call: Call, service: str) -> None:
        self.health = health
        self.call = call
        self.service = service
        self.told: int | None = None

    def cancel(self) -> None:
        """The client has gone."""
        self.health.watchers.discard(self)

    def tell(self, status: int) -> None:
        """Send the status where it is news."""
        if status != self.told:
            self.told = status
            self.call.send(HealthCheckResponse(status=status).SerializeToString())
