"""What all models of a server share while they load and run."""

from dataclasses import dataclass, field

from tensorferry.serve.core.cache import ResponseCache
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.limiter import Limiter


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all models of a server share while they load and run."""

    trust: bool = False
    default_max_batch_size: int = 8
    default_max_queue: int = 0
    limiter: Limiter = field(default_factory=Limiter)
    deferred: DeferredCalls = field(default_factory=DeferredCalls)
    cache: ResponseCache | None = None
