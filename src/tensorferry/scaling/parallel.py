"""How a training is split over ranks: `data`, `fsdp`, `tensor`, or products of them as `data=2,fsdp=4`."""

from dataclasses import dataclass

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean

_WAYS = ("data", "fsdp", "tensor")


@dataclass(frozen=True)
class Parallel:
    """Ranks that hold copies of the weights (`data`), that hold a share of a copy (`fsdp`), that compute a share (`tensor`).

    Ranks that differ in `tensor` alone are neighbours, and take the same rows.
    """

    data: int
    fsdp: int
    tensor: int = 1

    @property
    def num_row_ranks(self) -> int:
        """Among how many the rows of a batch are divided."""
        return self.data * self.fsdp


def find_parallel(text: str, num_ranks: int) -> Parallel:
    """What a user wrote, for so many ranks; a way without a number takes all that the others leave.

    >>> find_parallel("data", 4), find_parallel("fsdp,tensor=2", 8)
    (Parallel(data=4, fsdp=1, tensor=1), Parallel(data=1, fsdp=4, tensor=2))
    """
    asked = dict(_read_way(part, text) for part in text.split(","))
    if len(asked) != len(text.split(",")):
        raise BadOption(f"--parallel {text} names a way twice")
    known = 1
    for number in asked.values():
        known *= number or 1
    open_ways = [way for way, number in asked.items() if number is None]
    if len(open_ways) > 1:
        raise BadOption(f"--parallel {text}: say how many ranks share the weights, as in {open_ways[0]},{open_ways[1]}=2")
    rest, left = divmod(num_ranks, known)
    if left or (not open_ways and rest != 1):
        raise BadOption(f"--parallel {text} needs {'a multiple of ' if open_ways else ''}{known} workers, there are {num_ranks}")
    sizes = {way: asked[way] or rest for way in asked}
    return Parallel(sizes.get("data", 1), sizes.get("fsdp", 1), sizes.get("tensor", 1))


def _read_way(part: str, text: str) -> tuple[str, int | None]:
    name, equals, number = (piece.strip() for piece in part.partition("="))
    if name not in _WAYS:
        raise BadOption(f"--parallel {text}: there is no way {name!r}{did_you_mean(name, _WAYS)}; there are {', '.join(_WAYS)}")
    if not equals:
        return name, None
    if not number.isdecimal() or int(number) < 1:
        raise BadOption(f"--parallel {text}: expected a number of ranks after {name}=, received {number!r}")
    return name, int(number)
