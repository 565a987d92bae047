"""What is held at one op of a step, by what it is for: the part of a refusal that says where the memory is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorferry.plan.schedule import make_tables
from tensorferry.trace import Kind, Trace
from tensorferry.units import format_bytes

_WORDS = {
    Kind.PARAMETER: "weights",
    Kind.GRADIENT: "gradients",
    Kind.OPTIMIZER: "optimizer state",
    Kind.ACTIVATION: "activations",
    Kind.INPUT: "inputs",
    Kind.BUFFER: "buffers",
}
_MIN_SHARE = 0.02  # of all that is held; what is less is summed up
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Holder:
    """Bytes that are held for one purpose."""

    what: str
    nbytes: int
    largest: str = ""  # who made the largest part of it
    largest_nbytes: int = 0


def find_holders(trace: Trace, op: int) -> list[Holder]:
    """Who holds memory during an op when everything movable is out of its gap, the largest first."""
    gaps = make_tables(trace).gaps
    held: dict[Kind, list[int]] = {}
    for s, storage in enumerate(trace.storages):
        is_alive = storage.born_at <= op and (storage.freed_after is None or op <= storage.freed_after)
        if is_alive and not (s in gaps and gaps[s].leaves_at <= op < gaps[s].wanted_at):
            held.setdefault(storage.kind, []).append(s)
    holders = [Holder("the op's workspace", trace.ops[op].workspace_nbytes), Holder("other memory", trace.overhead_nbytes)]
    for kind, storages in held.items():
        total_nbytes = sum(trace.storages[s].nbytes for s in storages)
        largest = max((trace.storages[s] for s in storages), key=lambda storage: storage.nbytes)
        is_told = kind is Kind.ACTIVATION and len(storages) > 1
        told = (largest.label, largest.nbytes) if is_told else ("", 0)
        holders.append(Holder(_WORDS[kind], total_nbytes, *told))
    return _largest_first(holders)


def holders_by_kind(nbytes: Mapping[Kind, int], total_nbytes: int) -> list[Holder]:
    """The same from sums; what is held beyond them is held by others."""
    known = [Holder(_WORDS[kind], held) for kind, held in nbytes.items()]
    return _largest_first([*known, Holder("other memory", total_nbytes - sum(nbytes.values()))])


def describe_holders(holders: Iterable[Holder]) -> str:
    """A list in words.

    >>> describe_holders([Holder("weights", 2**21), Holder("activations", 2**20, "conv 1", 2**19), Holder("inputs", 2**10)])
    "2 MiB of weights, 1 MiB of activations ('conv 1' alone 512 KiB) and 1 KiB more"
    """
    holders = list(holders)
    least_nbytes = _MIN_SHARE * sum(holder.nbytes for holder in holders)
    named = [holder for holder in holders[:_MAX_NAMED] if holder.nbytes >= least_nbytes]
    parts = [f"{format_bytes(holder.nbytes)} of {holder.what}{_largest(holder)}" for holder in named]
    if rest_nbytes := sum(holder.nbytes for holder in holders[len(named) :]):
        parts.append(f"{format_bytes(rest_nbytes)} more")
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _largest_first(holders: Iterable[Holder]) -> list[Holder]:
    return sorted((holder for holder in holders if holder.nbytes > 0), key=lambda holder: -holder.nbytes)


def _largest(holder: Holder) -> str:
    return f" ({holder.largest!r} alone {format_bytes(holder.largest_nbytes)})" if holder.largest else ""
