"""The order in which things are used in a step, by which the next step is foreseen: it hardly changes.

Each thing has a key that is the same in every step. Where a step is not like the last one, its place there is found again at the
next use that is.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

_LOOK_FOR = 512  # uses, after one that was not expected


@dataclass
class _Order:
    """The keys of what was used, one after another, in one step."""

    keys: list[Hashable] = field(default_factory=list)
    places: defaultdict[Hashable, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: Hashable) -> None:
        if not self.keys or self.keys[-1] != key:
            self.places[key].append(len(self.keys))
            self.keys.append(key)

    def next_place(self, key: Hashable, place: int) -> int | None:
        """Where a key comes at or after a place, counted on into the next step; None for one that was not used."""
        places = self.places.get(key)
        if not places:
            return None
        found = bisect_left(places, place)
        return places[found] if found < len(places) else places[0] + len(self.keys)


class UseOrder:
    """What was used in the last step, and where in it the step under way is."""

    def __init__(self) -> None:
        self._order, self._last = _Order(), _Order()
        self._place = 0  # in the last order: of what is expected next

    @property
    def is_known(self) -> bool:
        """Whether there was a step before."""
        return bool(self._last.keys)

    def begin_step(self) -> None:
        """Uses from now on are another step's."""
        if self._order.keys:
            self._order, self._last, self._place = _Order(), self._order, 0

    def note(self, key: Hashable) -> None:
        """Something is used."""
        self._order.add(key)
        keys = self._last.keys
        if self._place < len(keys) and keys[self._place] == key:
            self._place += 1
            return
        place = self._last.next_place(key, max(0, self._place - 1))
        if place is not None and place < min(len(keys), self._place + _LOOK_FOR):
            self._place = place + 1

    def next_use(self, key: Hashable) -> int | None:
        """A number that is the larger the later something will be used; None if that is not known."""
        return self._last.next_place(key, self._place)

    def ahead(self, num: int) -> Iterator[tuple[int, Hashable]]:
        """What is expected next, with the numbers of `next_use`."""
        keys = self._last.keys
        for place in range(self._place, self._place + min(num, len(keys))):
            yield place, keys[place % len(keys)]
