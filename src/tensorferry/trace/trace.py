"""What one training step did: its ops in execution order, and the storages they made and read.

A trace works on storages, not tensors: views share bytes, and only whole storages can move. Ops are known by their
position in `Trace.ops`, storages by their position in `Trace.storages`.

One storage's life, in op positions:

    writers[0]      saved_at            idle_after                  wanted_at      freed_after
        │ made         │ saved for backward  │ nobody else reads it     │ backward     │ gone
        ├──────────────┴─────────────────────┤╌╌╌╌╌╌╌ the gap ╌╌╌╌╌╌╌╌╌╌├──────────────┤
                       └── may be copied out from here on

In the gap a storage need not be resident: that is what a plan decides about.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.errors import BadTrace
from tensorferry.units import format_bytes, format_seconds

FORMAT = "tensorferry-trace-1"


class Kind(StrEnum):
    """What a storage is for."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    BUFFER = "buffer"


class Phase(StrEnum):
    """Which part of the step an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Op:
    """One op as it ran."""

    name: str  # as the framework calls it, with the layer it belongs to when known
    phase: Phase
    seconds: float  # measured, or from a machine's data sheet
    inputs: tuple[int, ...]  # storages it reads
    outputs: tuple[int, ...]  # storages it makes or writes
    flops: int = 0
    touched_nbytes: int = 0  # bytes it reads and writes
    workspace_nbytes: int = 0  # held only while it runs, beyond the storages
    replayable: bool = False  # running it again gives the same bits and changes nothing else
    precision: str = "fp32"  # what it computes in: "fp32", "fp16", "bf16", ...

    @property
    def kernel(self) -> str:
        """What the op is, without the layer it belongs to."""
        return self.name.replace(":", " ").rsplit(" ", 1)[-1]


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of device memory and its life in the step. See the picture at the top of this file."""

    nbytes: int
    kind: Kind
    writers: tuple[int, ...]  # ops that wrote it, in order; empty: it was there before the step
    uses: tuple[int, ...]  # ops that read it, in order
    freed_after: int | None  # the last op during which it is alive; None: it outlives the step
    saved_at: int | None = None  # when this op starts its bytes are final and saved for backward
    idle_after: int | None = None  # after this op only autograd holds it
    wanted_at: int | None = None  # the first op of backward that reads it
    label: str = ""

    @property
    def movable(self) -> bool:
        """Whether there is a gap in which it need not be resident."""
        return self.idle_after is not None and self.wanted_at is not None and self.wanted_at > self.idle_after + 1

    @property
    def was_there(self) -> bool:
        """Whether it existed before the step: no op made it, or one read it no later than it was first written."""
        return not self.writers or (bool(self.uses) and self.uses[0] <= self.writers[0])

    @property
    def born_at(self) -> int:
        """The op that allocates it; 0 for what was there before."""
        return 0 if self.was_there else self.writers[0]


@dataclass(frozen=True)
class Trace:
    """One training step.

    >>> print(Trace(ops=(), storages=()))
    trace of 0 ops, 0 storages, 0 of them movable
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    overhead_nbytes: int = 0  # resident all through the step and explained by no storage; negative: some are not resident
    framework: str = "torch"
    device: str = "cpu"
    measured: bool = True  # False: nothing was run, seconds and workspace are estimates

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The storages a plan may decide about."""
        return tuple(i for i, storage in enumerate(self.storages) if storage.movable)

    @cached_property
    def plain_resident(self) -> np.ndarray:
        """Bytes held during each op, workspace and overhead included, when every storage is kept."""
        change = np.zeros(len(self.ops) + 1, dtype=np.int64)
        for storage in self.storages:
            change[storage.born_at] += storage.nbytes
            if storage.freed_after is not None:
                change[storage.freed_after + 1] -= storage.nbytes
        workspace = np.fromiter((op.workspace_nbytes for op in self.ops), dtype=np.int64, count=len(self.ops))
        return np.cumsum(change[:-1]) + workspace + self.overhead_nbytes

    @property
    def plain_peak_nbytes(self) -> int:
        """The most a step holds at once when every storage is kept."""
        return int(self.plain_resident.max(initial=self.overhead_nbytes))

    @property
    def seconds(self) -> float:
        """The step's compute time."""
        return sum(op.seconds for op in self.ops)

    def check(self) -> "Trace":
        """Return this trace, or raise `BadTrace` naming the first contradiction."""
        num_ops = len(self.ops)
        for i, op in enumerate(self.ops):
            for s in (*op.inputs, *op.outputs):
                if not 0 <= s < len(self.storages):
                    raise BadTrace(f"op {i} ({op.name}) names storage {s}, but there are only {len(self.storages)}")
        for s, storage in enumerate(self.storages):
            if any(not 0 <= i < num_ops for i in (*storage.writers, *storage.uses)):
                raise BadTrace(f"storage {s} ({storage.label}) is written or read by an op outside the step of {num_ops} ops")
            moments = [m for m in (storage.born_at, storage.idle_after, storage.wanted_at, storage.freed_after) if m is not None]
            if moments != sorted(moments) or (num_ops and moments and not 0 <= moments[0] <= moments[-1] < num_ops):
                raise BadTrace(f"storage {s} ({storage.label}) has moments out of order or outside the step: {moments}")
        return self

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON."""
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace that `save` wrote."""
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BadTrace(f"cannot read a trace from {str(path)!r}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The trace as plain JSON values."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Trace":
        """The trace that `to_json` wrote."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise BadTrace(f"expected a trace of format {FORMAT!r}, received {found!r}; capture it again with this version")
        try:
            fields = {k: v for k, v in data.items() if k not in ("format", "ops", "storages")}
            return cls(
                ops=tuple(Op(**_tuples(row, ("inputs", "outputs")) | {"phase": Phase(row["phase"])}) for row in data["ops"]),
                storages=tuple(
                    Storage(**_tuples(row, ("writers", "uses")) | {"kind": Kind(row["kind"])}) for row in data["storages"]
                ),
                **fields,
            ).check()
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadTrace):
                raise
            raise BadTrace(f"the trace is damaged: {error}") from error

    def __str__(self) -> str:
        head = f"trace of {len(self.ops)} ops, {len(self.storages)} storages, {len(self.movable)} of them movable"
        if not self.ops:
            return head
        lines = [
            f"{head} ({self.framework} on {self.device}, {'measured' if self.measured else 'not run'})",
            f"  plain peak {format_bytes(self.plain_peak_nbytes)}, step {format_seconds(self.seconds)}, "
            f"movable {format_bytes(sum(self.storages[s].nbytes for s in self.movable))}",
        ]
        for kind in Kind:
            nbytes = [storage.nbytes for storage in self.storages if storage.kind is kind]
            if nbytes:
                lines.append(f"  {kind:<10} {len(nbytes):>6} storages {format_bytes(sum(nbytes)):>10}")
        widest = int(self.plain_resident.argmax())
        lines.append(f"  the peak is at op {widest}, {self.ops[widest].name} ({self.ops[widest].phase})")
        return "\n".join(lines)


def _tuples(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return row | {name: tuple(row[name]) for name in names}
