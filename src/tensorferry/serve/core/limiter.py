"""Rate limits by instance: an instance runs a batch only while it holds the resources that its configuration names.

How many of a resource there are is said on the command line, or is the most that one instance asks for. A resource that is not
`global` exists once for every device.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensorferry.errors import BadModel


class Limiter:
    """The resources of the whole server; instances wait in order of their priority (1 first), then of arrival."""

    def __init__(self, totals: Mapping[str, int] | None = None) -> None:
        self.given = dict(totals or {})
        self.totals: dict[str, int] = dict(self.given)
        self.used: dict[str, int] = {}
        self.changed = threading.Condition()
        self.waiting: list[tuple[int, int]] = []
        self.serial = 0

    def admit(self, needs: Mapping[str, int], name: str) -> None:
        """Make an instance known; refused where it could never run."""
        with self.changed:
            for resource, count in needs.items():
                if resource in self.given and count > self.given[resource]:
                    raise BadModel(
                        f"an instance of '{name}' needs {count} of the resource '{resource}', there are {self.given[resource]}"
                    )
                self.totals[resource] = max(self.totals.get(resource, 0), count)

    @contextmanager
    def lease(self, needs: Mapping[str, int], priority: int) -> Iterator[None]:
        """Hold `needs` for the time of one batch."""
        with self.changed:
            self.serial += 1
            turn = (priority, self.serial)
            self.waiting.append(turn)
            self.changed.wait_for(lambda: turn == min(self.waiting) and self._has(needs))
            self.waiting.remove(turn)
            for resource, count in needs.items():
                self.used[resource] = self.used.get(resource, 0) + count
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                for resource, count in needs.items():
                    self.used[resource] -= count
                self.changed.notify_all()

    def _has(self, needs: Mapping[str, int]) -> bool:
        return all(self.used.get(resource, 0) + count <= self.totals[resource] for resource, count in needs.items())


def read_needs(group: Any, device: str) -> dict[str, int]:
    """What each instance of a ModelInstanceGroup needs."""
    needs: dict[str, int] = {}
    for resource in group.rate_limiter.resources:
        # `global` is a word of Python, so the field is only reachable by name
        is_shared = getattr(resource, "global") or device == "cpu"
        name = resource.name if is_shared else f"{resource.name}@{device}"
        needs[name] = needs.get(name, 0) + resource.count
    return needs
