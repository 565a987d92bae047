"""How a training is split over ranks: `data`, `fsdp`, `tensor`, `pipeline`, or products of them as `data=2,fsdp=4`."""

from dataclasses import dataclass, field
from math import prod

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean

_WAYS = ("data", "fsdp", "tensor", "pipeline")
_MICRO_BATCHES_A_RANK = 2  # of a pipeline; fewer leave its ranks idle for longer


@dataclass(frozen=True)
class Parallel:
    """Ranks that hold copies of the weights (`data`), that hold a share of a copy (`fsdp`), that compute a share of each layer
    (`tensor`), that have some of the layers (`pipeline`).

    Ranks that differ in `tensor` alone are neighbours. They and the ranks of a pipeline take the same rows.
    """

    data: int
    fsdp: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def num_ranks(self) -> int:
        """All of them."""
        return self.data * self.fsdp * self.tensor * self.pipeline

    @property
    def num_row_ranks(self) -> int:
        """Among how many the rows of a batch are divided."""
        return self.data * self.fsdp

    def locate(self, rank: int) -> dict[str, int]:
        """Where a rank is along each way; neighbours come first, and the stages of a pipeline are furthest apart."""
        rest, tensor = divmod(rank, self.tensor)
        rest, fsdp = divmod(rest, self.fsdp)
        pipeline, data = divmod(rest, self.data)
        return {"pipeline": pipeline, "data": data, "fsdp": fsdp, "tensor": tensor}

    @property
    def row_leaders(self) -> range:
        """One rank for each part of the rows, which has the model's outputs for them."""
        first = (self.pipeline - 1) * self.num_row_ranks * self.tensor
        return range(first, first + self.num_row_ranks * self.tensor, self.tensor)


@dataclass(frozen=True)
class Pipelining:
    """How a pipeline is fed."""

    micro_batch: int | None = None  # rows at a time; None: it is chosen
    interleave: int = 1  # stages that each rank has

    def count_micro_batches(self, num_rows: int, num_ranks: int) -> int:
        """Into how many a pipeline of so many ranks cuts its rows; raises BadOption where that does not come out even.

        >>> Pipelining().count_micro_batches(8, 2), Pipelining(micro_batch=1).count_micro_batches(8, 2)
        (4, 8)
        """
        if self.micro_batch is not None:
            num, left = divmod(num_rows, self.micro_batch)
            if left or not self._may_be(num, num_ranks):
                raise BadOption(
                    f"--micro-batch {self.micro_batch} does not cut the {num_rows} rows of a pipeline into equal parts, "
                    f"{self._say_how_many(num_ranks)}"
                )
            return num
        possible = [num for num in range(num_ranks, num_rows + 1) if num_rows % num == 0 and self._may_be(num, num_ranks)]
        if not possible:
            raise BadOption(
                f"a pipeline of {num_ranks} ranks cannot cut its {num_rows} rows into equal parts, "
                f"{self._say_how_many(num_ranks)}; use --set batch=N"
            )
        return next((num for num in possible if num >= _MICRO_BATCHES_A_RANK * num_ranks), possible[-1])

    def _may_be(self, num: int, num_ranks: int) -> bool:
        return num >= num_ranks and (self.interleave == 1 or num % (num // num_ranks) == 0)

    def _say_how_many(self, num_ranks: int) -> str:
        return f"{num_ranks} at least" + (f", in rounds of about {num_ranks}" if self.interleave > 1 else "")


@dataclass(frozen=True)
class Split:
    """How a user asks for it; what comes of `parallel` depends on the number of ranks."""

    parallel: str = "data"
    sync_norm: bool = False  # batch norm over the rows of all ranks
    pipelining: Pipelining = field(default_factory=Pipelining)


def count_ranks(text: str) -> int | None:
    """How many ranks a user has asked for by numbers alone; None: one of the ways has none.

    >>> count_ranks("fsdp=2,tensor=2"), count_ranks("data")
    (4, None)
    """
    numbers = [_read_way(part, text)[1] for part in text.split(",")]
    return None if None in numbers else prod(number for number in numbers if number is not None)


def find_parallel(text: str, num_ranks: int) -> Parallel:
    """What a user wrote, for so many ranks; a way without a number takes all that the others leave.

    >>> find_parallel("data", 4), find_parallel("fsdp,tensor=2", 8)
    (Parallel(data=4, fsdp=1, tensor=1, pipeline=1), Parallel(data=1, fsdp=4, tensor=2, pipeline=1))
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
    return Parallel(*(sizes.get(way, 1) for way in _WAYS))


def check_pipelining(batch: int, ways: Parallel, pipelining: Pipelining) -> None:
    """Raise BadOption where a pipeline cannot be fed with a recipe's batch, or is fed though there is none."""
    if ways.pipeline == 1:
        given = {"--micro-batch": pipelining.micro_batch is not None, "--interleave": pipelining.interleave > 1}
        if any(given.values()):
            option = next(option for option, is_given in given.items() if is_given)
            raise BadOption(f"{option} is for pipelines; add pipeline=K to --parallel")
        return
    num_rows, left = divmod(batch, ways.num_row_ranks)
    if left:
        raise BadOption(f"a batch of {batch} does not divide among {ways.num_row_ranks} pipelines; use --set batch=N")
    pipelining.count_micro_batches(num_rows, ways.pipeline)


def _read_way(part: str, text: str) -> tuple[str, int | None]:
    name, equals, number = (piece.strip() for piece in part.partition("="))
    if name not in _WAYS:
        raise BadOption(f"--parallel {text}: there is no way {name!r}{did_you_mean(name, _WAYS)}; there are {', '.join(_WAYS)}")
    if not equals:
        return name, None
    if not number.isdecimal() or int(number) < 1:
        raise BadOption(f"--parallel {text}: expected a number of ranks after {name}=, received {number!r}")
    return name, int(number)
