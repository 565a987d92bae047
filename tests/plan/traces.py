"""Random small training steps: forks, joins, in-place ops, side outputs, ops that may or may not be run again."""

import random
from dataclasses import replace

from tensorferry.machine import Machine, TierSpeed
from tensorferry.trace import Kind, Phase, Storage, Trace
from tensorferry.trace.synthetic import TraceBuilder


def random_trace(seed: int, max_layers: int = 10) -> Trace:
    """A random step; the same seed gives the same one."""
    rng = random.Random(seed)
    step = TraceBuilder()
    batch = step.storage(rng.randrange(1, 50), Kind.INPUT, "batch")
    weights = [step.storage(rng.randrange(1, 20), Kind.PARAMETER, f"weight {k}") for k in range(3)]
    made, saved = [batch], []
    for k in range(rng.randrange(1, max_layers + 1)):
        inputs = tuple({made[-1]: 0, rng.choice(made[-4:]): 0, rng.choice((*weights, made[-1])): 0})
        outputs = tuple(
            step.storage(rng.randrange(0, 100), Kind.ACTIVATION, f"activation {k}.{j}") for j in range(rng.choice((1, 1, 1, 2)))
        )
        cheap = rng.random() < 0.6
        seconds = rng.uniform(0.1, 1.0) if cheap else rng.uniform(1.0, 8.0)
        workspace_nbytes = rng.choice((0, 0, 20, 50))
        step.op(f"op {k}", Phase.FORWARD, seconds, inputs, outputs, workspace_nbytes=workspace_nbytes, replayable=cheap)
        if rng.random() < 0.3:
            step.op(f"op {k} in place", Phase.FORWARD, seconds / 2, outputs[:1], outputs[:1], replayable=rng.random() < 0.8)
        made += outputs
        saved.append([s for s in (*inputs, *outputs) if rng.random() < 0.5])
    _add_backward(step, rng, made[-1], saved, weights)
    trace = step.finish(overhead_nbytes=rng.randrange(30))
    return replace(trace, storages=tuple(_vary(storage, rng, len(trace.ops)) for storage in trace.storages)).check()


def _add_backward(step: TraceBuilder, rng: random.Random, last: int, saved: list[list[int]], weights: list[int]) -> None:
    gradient = step.storage(rng.randrange(1, 60), Kind.GRADIENT, "loss gradient")
    step.op("loss backward", Phase.BACKWARD, rng.uniform(0.1, 2.0), (last,), (gradient,))
    for k, reads in reversed(list(enumerate(saved))):
        outputs = tuple(step.storage(rng.randrange(1, 60), Kind.GRADIENT, f"gradient {k}.{j}") for j in range(2))
        inputs = tuple(dict.fromkeys((*reads, gradient)))
        step.op(f"op {k} backward", Phase.BACKWARD, rng.uniform(0.2, 12), inputs, outputs, workspace_nbytes=rng.randrange(40))
        gradient = outputs[0]
    for weight in weights:
        step.op("optimizer", Phase.OPTIMIZER, rng.uniform(0.05, 0.5), (weight,), (weight,))


def _vary(storage: Storage, rng: random.Random, num_ops: int) -> Storage:
    """Another moment for what does not follow from the ops: when it was saved, how long it lives."""
    if storage.idle_after is None or storage.freed_after is None or storage.wanted_at is None:
        return storage
    saved_at = rng.choice((storage.saved_at, storage.idle_after + 1, None, min(storage.idle_after + 3, storage.wanted_at)))
    freed_after = rng.choice((storage.freed_after, storage.freed_after, rng.randrange(storage.freed_after, num_ops), None))
    return replace(storage, saved_at=saved_at, freed_after=freed_after)


def random_machine(seed: int) -> Machine:
    """A machine whose link is anything from far too slow to very fast for `random_trace`."""
    rng = random.Random(seed)
    out, back = (10 ** rng.uniform(0, 3) for _ in range(2))
    tier = TierSpeed("tier", out, back, latency_seconds=rng.choice((0.0, 0.05)))
    return Machine("random", memory_nbytes=10**6, tiers=(tier,), link_shared_by=rng.choice((1, 1, 2)))
