"""What a client may take of the server: every limit that is not a byte of the memory budget (`memory`)."""

from dataclasses import dataclass

MAX_HEADER_NBYTES = 32 * 1024  # of a request's head over HTTP/1.1, whole or not
MAX_NUM_HEADERS = 128
MAX_CONTROL_NBYTES = 64 * 1024  # of a request that carries neither tensors nor files
MAX_MESSAGE_NBYTES = 2**31 - 2**17  # what a window of HTTP/2, and protobuf, can hold
MAX_FIELDS = 4096  # of a large gRPC message: its inputs, outputs and parameters together
MAX_REGIONS = 256  # of shared memory
MAX_WATCHES = 1024  # calls of Health/Watch at a time
BACKLOG = 512  # connections that wait to be taken
HANDSHAKE_SECONDS = 10.0  # for TLS
LINGER_SECONDS = 2.0  # how long a client that was told to go may take to hang up
GRACE_SECONDS = 1.0  # how long a server that is told to stop takes what clients sent before they heard of it

# How much the event loop decodes or encodes itself. More than that takes longer than others should wait, and goes to a thread.
INLINE_NBYTES = 64 * 1024  # of JSON, texts, or what is compressed
INLINE_RAW_NBYTES = 2**20  # of numbers as they are, which are only copied

# How much one request may bring in forms that the interpreter's lock is held for, in threads too. Raw numbers are not.
MAX_JSON_VALUES = 2**19  # numbers; texts, keys, lists and objects count several times
MAX_TEXTS = 2**20  # elements of BYTES in one tensor
MAX_TYPED_NBYTES = 8 * 2**20  # of a gRPC message without its raw contents
PIECE_VALUES = 2**16  # converted at a time, before others have their turn


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of REST."""

    max_body_nbytes: int = 64 * 2**20
    max_connections: int = 1024
    read_seconds: float = 60.0  # for a whole request, from its first byte, and for an answer to be read
    idle_seconds: float = 120.0  # between requests


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The limits of gRPC."""

    max_message_nbytes: int = 64 * 2**20
    max_connections: int = 1024
    max_streams: int = 256  # of one connection at a time; clients keep further calls back themselves
    read_seconds: float = 60.0  # for a whole request to come, or for an answer to be read
    idle_seconds: float = 600.0  # without a call
    ping_seconds: float = 60.0  # of silence during a call, before the client is asked whether it is there
    pong_seconds: float = 20.0  # for its answer
