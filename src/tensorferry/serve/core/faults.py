"""Why a request was not answered. What each becomes on the wire is the business of `rest` and `rpc`.

RequestFault
├── InvalidRequest   the request contradicts itself, the model or a limit
├── TooLarge         more bytes than the server takes
├── MemoryFull       more bytes than it has left for clients just now
├── Denied           no key, or a wrong one
├── Forbidden        not for this client: a page of another site, a name that is not the server's, a key for less
├── NotFound         no such model, version, region or address
├── Conflict         the name is taken
├── Unavailable      not now: loading, full, too late, shutting down
├── Unsupported      the protocol has it, this server does not
└── ModelFault       the model itself failed on a request that looked right
    └── NotOver      it wants to see the request again, and nobody was there to bring it back
"""

from tensorferry.errors import FerryError


class RequestFault(FerryError):
    """The root: a request that gets an error as its answer."""


class InvalidRequest(RequestFault):
    """The request contradicts itself, the model or a limit."""


class TooLarge(RequestFault):
    """More bytes than the server takes."""


class MemoryFull(RequestFault):
    """More bytes than the server has left for clients just now."""


class Denied(RequestFault):
    """No key, or a wrong one."""


class Forbidden(RequestFault):
    """Not for this client, whoever it is: a page of another site, a name that is not the server's, a key for less."""


class NotFound(RequestFault):
    """No such model, version, region or address."""


class Conflict(RequestFault):
    """The name is taken."""


class Unavailable(RequestFault):
    """Not now: loading, full, too late or shutting down."""


class Unsupported(RequestFault):
    """The protocol has it, this server does not."""


class ModelFault(RequestFault):
    """The model itself failed on a request that looked right."""


class NotOver(ModelFault):
    """The model wants to see the request again; told to a client only where nobody brings it back."""


def as_fault(error: Exception) -> RequestFault:
    """What a request is told of an error: a fault as it is, anything else as the model's own.

    >>> as_fault(KeyError("y"))
    ModelFault("KeyError: 'y'")
    """
    return error if isinstance(error, RequestFault) else ModelFault(f"{type(error).__name__}: {error}")
