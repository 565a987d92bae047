"""A plan: for every movable storage keep, swap or recompute, and what that is predicted to cost."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tensorferry.errors import BadPlan
from tensorferry.units import format_bytes, format_seconds

FORMAT = "tensorferry-plan-2"


class Action(StrEnum):
    """What becomes of a storage in its gap."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one storage."""

    storage: int
    action: Action
    nbytes: int
    swap_in_at: int | None = None  # swap: the copy in may start when this op starts
    replay: tuple[int, ...] = ()  # recompute: the ops to run again, in order
    sources: tuple[int, ...] = ()  # recompute: the storages that the replay reads and does not make itself
    read_at: int | None = None  # swap: its bytes go on to the tier behind, and may start back from there when this op starts


@dataclass(frozen=True)
class Plan:
    """Decisions for every movable storage of one trace, in storage order, and the predicted cost."""

    decisions: tuple[Decision, ...]
    budget_nbytes: int
    floor_nbytes: int  # no plan of this trace can go below it
    floor_op: int  # the op that sets the floor
    peak_nbytes: int  # predicted
    step_seconds: float
    stall_seconds: float
    plain_peak_nbytes: int
    plain_seconds: float
    machine: str
    tier: str
    behind: str = ""  # the tier behind that one, if there is one

    def nbytes(self, action: Action) -> int:
        """Bytes of all storages with this action."""
        return sum(decision.nbytes for decision in self.decisions if decision.action is action)

    @property
    def behind_nbytes(self) -> int:
        """Bytes of all storages that go on to the tier behind."""
        return sum(decision.nbytes for decision in self.decisions if decision.read_at is not None)

    @property
    def tiers(self) -> str:
        """Where swapped bytes wait, as text."""
        return f"{self.tier} and then {self.behind}" if self.behind else self.tier

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan that `save` wrote."""
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BadPlan(f"cannot read a plan from {str(path)!r}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Plan":
        """The plan that `to_json` wrote."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise BadPlan(f"expected a plan of format {FORMAT!r}, received {found!r}; plan again with this version")
        try:
            decisions = tuple(
                Decision(
                    **row | {"action": Action(row["action"]), "replay": tuple(row["replay"]), "sources": tuple(row["sources"])}
                )
                for row in data["decisions"]
            )
            return cls(**{k: v for k, v in data.items() if k != "format"} | {"decisions": decisions})
        except (KeyError, TypeError, ValueError) as error:
            raise BadPlan(f"the plan is damaged: {error}") from error

    def __str__(self) -> str:
        count = Counter(decision.action for decision in self.decisions)
        lines = [
            f"plan for {format_bytes(self.budget_nbytes)} on {self.machine}, tier {self.tiers}",
            f"  peak {format_bytes(self.peak_nbytes)} (plain {format_bytes(self.plain_peak_nbytes)}), "
            f"step {format_seconds(self.step_seconds)} (plain {format_seconds(self.plain_seconds)}), "
            f"stall {format_seconds(self.stall_seconds)}",
        ]
        lines += [f"  {action:<10} {count[action]:>6} storages {format_bytes(self.nbytes(action)):>10}" for action in Action]
        lines.append(f"  smallest budget {format_bytes(self.floor_nbytes)}, set by op {self.floor_op}")
        return "\n".join(lines)
