"""Jobs that wait, and which of them go together next. No threads here: `scheduler.py` calls it under its lock.

By default nobody waits for company: a free instance takes what queued while all were busy, and several free ones share it
evenly. With a queue delay or preferred sizes, the oldest job waits at most the delay for a batch of a preferred size (or a full
one).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest, RequestFault, Unavailable
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.core.tracing import RequestTrace

_MAX_SEARCH = 1024  # how many jobs are looked at in the search for company


def nobody(outcome: object) -> None:
    """Hears what becomes of a job that nobody waits for."""


@dataclass(slots=True, eq=False)
class Job:
    """One request of one model; `done` is called once, from any thread, unless it was cancelled before it started."""

    inputs: dict[str, Array]
    num_rows: int
    key: tuple[object, ...]
    done: Callable[[list[Array] | RequestFault], None]
    priority: int = 0
    timeout_seconds: float = 0.0
    queued_at: float = 0.0
    deadline: float | None = None
    cancelled: bool = False
    trace: RequestTrace | None = None
    slot: int = 0  # of the sequence that it is of


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How one level of priority treats its jobs."""

    max_size: int = 0  # 0: no limit
    timeout_seconds: float = 0.0  # 0: none
    delays_late: bool = False  # late jobs go behind the others instead of being refused
    allows_own_timeout: bool = False


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How jobs become batches."""

    max_batch_size: int = 0
    preferred_sizes: tuple[int, ...] = ()
    max_delay_seconds: float = 0.0
    num_levels: int = 0
    default_level: int = 0
    queue: QueuePolicy = QueuePolicy()
    queues: dict[int, QueuePolicy] = field(default_factory=dict)  # for levels with a policy of their own

    @property
    def wants_company(self) -> bool:
        """Whether jobs wait for others to go with."""
        return bool(self.preferred_sizes or self.max_delay_seconds)

    def level_of(self, priority: int) -> int:
        """The level of a job; 1 is served first."""
        if priority > max(self.num_levels, 0) and self.num_levels:
            raise InvalidRequest(f"priority {priority} is beyond the model's {self.num_levels} levels")
        return (priority or self.default_level) if self.num_levels else 0


@dataclass(slots=True)
class Taken:
    """What a look at the queue gave: a batch, or how long to wait for a better one (None: until something comes)."""

    batch: list[Job] = field(default_factory=list)
    late: list[Job] = field(default_factory=list)  # refused: their time is over
    wait_seconds: float | None = None


class JobQueue:
    """Jobs in order of priority, then of arrival."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.levels: dict[int, deque[Job]] = {level: deque() for level in range(policy.num_levels + 1)}
        self.delayed: deque[Job] = deque()
        self.in_order = (*self.levels.values(), self.delayed)

    def __len__(self) -> int:
        return sum(map(len, self.in_order))

    def push(self, job: Job, now: float) -> None:
        """Add a job, or refuse it where its level is full."""
        policy = self.policy
        level = policy.level_of(job.priority)
        rules = policy.queues.get(level, policy.queue)
        waiting = self.levels[level]
        if rules.max_size and len(waiting) >= rules.max_size:
            raise Unavailable(f"the queue is full: {len(waiting)} requests wait, at most {rules.max_size} may")
        seconds = rules.timeout_seconds
        if rules.allows_own_timeout and job.timeout_seconds:
            seconds = min(seconds, job.timeout_seconds) if seconds else job.timeout_seconds
        job.queued_at = now
        job.deadline = now + seconds if seconds else None
        waiting.append(job)

    def take(self, now: float, num_free: int = 1) -> Taken:
        """The next batch, where `num_free` instances could each run one; cancelled and late jobs leave the queue on the way."""
        taken = Taken()
        num_waiting = len(self)
        share = None if self.policy.wants_company else -(-num_waiting // num_free)
        if num_waiting == 1 and share is not None and self._take_only(taken):
            return taken
        seen: list[tuple[deque[Job], list[Job]]] = []
        rows = num_seen = 0
        is_full = False
        for waiting in self.in_order:
            if not waiting:
                continue
            looked_at: list[Job] = []
            seen.append((waiting, looked_at))
            while waiting and not is_full and len(looked_at) < _MAX_SEARCH:
                job = waiting.popleft()
                if job.cancelled or self._is_late(job, waiting, now, taken):
                    continue
                looked_at.append(job)
                if not taken.batch or self._fits(taken.batch[0], job, rows):
                    taken.batch.append(job)
                    rows += job.num_rows
                    is_full = rows >= self.policy.max_batch_size or len(taken.batch) == share
                else:
                    is_full = job.key == taken.batch[0].key
            num_seen += len(looked_at)
        self._settle(taken, is_full, now)
        if taken.wait_seconds is not None:
            # those that went behind the others because they were late have no time left to lose
            times = [job.deadline - now for _, jobs in seen for job in jobs if job.deadline is not None and job.deadline > now]
            taken.wait_seconds = min([taken.wait_seconds, *times])
        if num_seen > len(taken.batch):
            _put_back(seen, taken.batch)
        return taken

    def _take_only(self, taken: Taken) -> bool:
        """The same for a queue of one, as it mostly is; False where that one needs a closer look."""
        waiting = next(filter(None, self.in_order))
        job = waiting[0]
        if job.cancelled or job.deadline is not None:
            return False
        taken.batch.append(waiting.popleft())
        return True

    def _is_late(self, job: Job, waiting: deque[Job], now: float, taken: Taken) -> bool:
        if job.deadline is None or job.deadline > now:
            return False
        rules = self.policy.queues.get(self.policy.level_of(job.priority), self.policy.queue)
        if rules.delays_late:
            if waiting is self.delayed:
                return False
            self.delayed.append(job)
        else:
            taken.late.append(job)
        return True

    def _fits(self, first: Job, job: Job, rows: int) -> bool:
        return job.key == first.key and rows + job.num_rows <= self.policy.max_batch_size

    def _settle(self, taken: Taken, is_full: bool, now: float) -> None:
        """Shorten the batch to a preferred size, or empty it to wait for one."""
        policy = self.policy
        if not taken.batch or is_full or not policy.wants_company:
            return
        count = _count_for(taken.batch, policy.preferred_sizes)
        left = min(job.queued_at for job in taken.batch) + policy.max_delay_seconds - now
        if count == 0 and left > 0:
            taken.wait_seconds = left
            taken.batch.clear()
        elif count:
            del taken.batch[count:]


def read_policy(config: Any, default_max_queue: int) -> BatchPolicy:
    """The policy that a complete ModelConfig means; raises BadModel where it contradicts itself."""
    batching = config.dynamic_batching
    num_levels = batching.priority_levels
    _check(config)
    # a model with a batch dimension but without dynamic batching takes each request by itself
    max_batch_size = config.max_batch_size if config.HasField("dynamic_batching") else 0
    return BatchPolicy(
        max_batch_size=max_batch_size,
        preferred_sizes=tuple(sorted(batching.preferred_batch_size)),
        max_delay_seconds=batching.max_queue_delay_microseconds / 1e6,
        num_levels=num_levels,
        default_level=(batching.default_priority_level or (num_levels + 1) // 2) if num_levels else 0,
        queue=_read_queue(batching.default_queue_policy, default_max_queue),
        queues={level: _read_queue(policy, default_max_queue) for level, policy in batching.priority_queue_policy.items()},
    )


def _check(config: Any) -> None:
    batching = config.dynamic_batching
    num_levels = batching.priority_levels
    odd = [size for size in batching.preferred_batch_size if not 1 <= size <= config.max_batch_size]
    if odd:
        raise BadModel(
            f"model '{config.name}' has a preferred_batch_size of {odd[0]}; "
            f"expected 1 to its max_batch_size, {config.max_batch_size}"
        )
    if batching.default_priority_level > num_levels:
        raise BadModel(
            f"model '{config.name}' has a default_priority_level of {batching.default_priority_level} "
            f"and {num_levels} priority_levels; expected one of them"
        )
    odd = [level for level in batching.priority_queue_policy if not 1 <= level <= num_levels]
    if odd:
        raise BadModel(
            f"model '{config.name}' has a priority_queue_policy for level {odd[0]} and {num_levels} priority_levels; "
            "expected one of them"
        )


def _read_queue(policy: Any, default_max_queue: int) -> QueuePolicy:
    return QueuePolicy(
        max_size=policy.max_queue_size or default_max_queue,
        timeout_seconds=policy.default_timeout_microseconds / 1e6,
        delays_late=policy.timeout_action == policy.DELAY,
        allows_own_timeout=policy.allow_timeout_override,
    )


def _put_back(seen: list[tuple[deque[Job], list[Job]]], batch: list[Job]) -> None:
    """Give every job that was looked at and not taken its old place."""
    chosen = set(map(id, batch))
    for waiting, looked_at in seen:
        waiting.extendleft(job for job in reversed(looked_at) if id(job) not in chosen)


def _count_for(batch: list[Job], preferred: tuple[int, ...]) -> int:
    """How many jobs from the front make the largest preferred size; 0 where none does."""
    best = rows = 0
    for count, job in enumerate(batch, 1):
        rows += job.num_rows
        if rows in preferred:
            best = count
    return best
