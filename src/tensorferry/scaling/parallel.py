"""How a training is split over ranks: `data`, `fsdp`, or both as `data=2,fsdp=4`."""

from dataclasses import dataclass

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean

_WAYS = ("data", "fsdp")


@dataclass(frozen=True)
class Parallel:
    """Ranks that hold copies of the weights (`data`), and ranks that hold a share of each copy (`fsdp`)."""

    data: int
    fsdp: int


def find_parallel(text: str, num_ranks: int) -> Parallel:
    """What a user wrote, for so many ranks; a way without a number takes all that the others leave.

    >>> find_parallel("data", 4), find_parallel("data=2,fsdp", 8)
    (Parallel(data=4, fsdp=1), Parallel(data=2, fsdp=4))
    """
    asked = dict(_read_way(part, text) for part in text.split(","))
    if len(asked) != len(text.split(",")):
        raise BadOption(f"--parallel {text} names a way twice")
    known = 1
    for number in asked.values():
        known *= number or 1
    open_ways = [way for way, number in asked.items() if number is None]
    if len(open_ways) > 1:
        raise BadOption(f"--parallel {text}: say how many ranks share the weights, as in data,fsdp=2")
    rest, left = divmod(num_ranks, known)
    if left or (not open_ways and rest != 1):
        raise BadOption(f"--parallel {text} needs {'a multiple of ' if open_ways else ''}{known} workers, there are {num_ranks}")
    sizes = {way: asked[way] or rest for way in asked}
    return Parallel(sizes.get("data", 1), sizes.get("fsdp", 1))


def _read_way(part: str, text: str) -> tuple[str, int | None]:
    name, equals, number = (piece.strip() for piece in part.partition("="))
    if name not in _WAYS:
        raise BadOption(f"--parallel {text}: there is no way {name!r}{did_you_mean(name, _WAYS)}; there are {', '.join(_WAYS)}")
    if not equals:
        return name, None
    if not number.isdecimal() or int(number) < 1:
        raise BadOption(f"--parallel {text}: expected a number of ranks after {name}=, received {number!r}")
    return name, int(number)
