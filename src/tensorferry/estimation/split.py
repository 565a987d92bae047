"""How a model is split over a cluster: `data`, `fsdp`, `tensor=8,data=64`, `pipeline=4`, and products of them."""

import re
from dataclasses import dataclass

from tensorferry.errors import BadOption
from tensorferry.estimation.models import Transformer
from tensorferry.messages import did_you_mean

WAYS = ("data", "fsdp", "tensor", "pipeline")
AUTO = "auto"
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMbB]?)")


@dataclass(frozen=True, slots=True)
class ClusterSplit:
    """The degree of each way; their product is the number of GPUs.

    Ranks that talk most are nearest: tensor innermost, then fsdp, then data, and pipeline stages outermost.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.data * self.fsdp * self.tensor * self.pipeline

    @property
    def num_replicas(self) -> int:
        """How many parts a batch is cut into."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return (
            ",".join(f"{way}={size}" for way in ("tensor", "pipeline", "fsdp", "data") if (size := getattr(self, way)) > 1)
            or "one GPU"
        )


def parse_split(text: str, num_gpus: int) -> ClusterSplit:
    """What a user wrote, for so many GPUs; a way without a number, or else data, takes what the others leave.

    >>> str(parse_split("tensor=8", 512)), str(parse_split("fsdp", 256))
    ('tensor=8,data=64', 'fsdp=256')
    """
    asked: dict[str, int | None] = {}
    for part in text.split(","):
        way, size = _read_part(part, text)
        if way in asked:
            raise BadOption(f"--parallel {text} names {way} twice")
        asked[way] = size
    rest_ways = [way for way, size in asked.items() if size is None]
    if len(rest_ways) > 1:
        raise BadOption(f"--parallel {text}: only one way can go without a number, as in {rest_ways[0]},{rest_ways[1]}=8")
    known = 1
    for size in asked.values():
        known *= size or 1
    rest, left = divmod(num_gpus, known)
    way = rest_ways[0] if rest_ways else "data"
    if left or (rest != 1 and not rest_ways and "data" in asked):
        needs = f"a multiple of {known}" if rest_ways or "data" not in asked else str(known)
        raise BadOption(f"--parallel {text} needs {needs} GPUs, there are {num_gpus}")
    sizes = {name: size or 1 for name, size in asked.items()}
    if rest_ways or "data" not in asked:
        sizes[way] = rest
    return ClusterSplit(**sizes)


def _read_part(part: str, text: str) -> tuple[str, int | None]:
    way, equals, number = (piece.strip() for piece in part.partition("="))
    if way not in WAYS:
        raise BadOption(f"--parallel {text}: there is no way {way!r}{did_you_mean(way, WAYS)}; there are {', '.join(WAYS)}")
    if not equals:
        if way in ("tensor", "pipeline"):
            raise BadOption(f"--parallel {text}: say how many GPUs share a layer or a pipeline, as in {way}=8")
        return way, None
    if not number.isdecimal() or int(number) < 1:
        raise BadOption(f"--parallel {text}: expected a number above zero after {way}=, received {number!r}")
    return way, int(number)


def parse_count(text: str, option: str = "--batch", kilo: int = 1024) -> int:
    """A number as people write it: of a batch "64k" is 65,536; with `kilo` 1000, as for tokens, "300b" is 300 billion.

    >>> parse_count("64k"), parse_count("1.5m", "--samples", 1000)
    (65536, 1500000)
    """
    match = _COUNT.fullmatch(text.strip())
    count = float(match[1]) * kilo ** " kmb".index(match[2].lower() or " ") if match else 0.0
    if count < 1 or not count.is_integer():
        raise BadOption(f"expected {option} to be above zero, such as 512 or 64k, received {text}")
    return int(count)


def check_split(split: ClusterSplit, shape: Transformer | None, name: str, interleave: int, gpus_per_node: int) -> None:
    """`BadOption` where the model cannot be split so."""
    if shape is None:
        if split.tensor > 1 or split.pipeline > 1:
            raise BadOption(f"{name} can be split by data and fsdp only; tensor and pipeline are for bert-* and gpt-* models")
        return
    if shape.num_heads % split.tensor:
        raise BadOption(f"tensor={split.tensor} does not divide the {shape.num_heads} heads of {name}")
    if split.tensor > gpus_per_node:
        raise BadOption(
            f"tensor={split.tensor} would reach beyond a node of {gpus_per_node} GPUs; split the rest by pipeline or fsdp"
        )
    num_chunks = split.pipeline * interleave
    if shape.num_layers % num_chunks:
        how = f"pipeline={split.pipeline}" + (f" with interleave {interleave}" if interleave > 1 else "")
        raise BadOption(f"{how} does not divide the {shape.num_layers} layers of {name}")
    if interleave > 1 and split.pipeline == 1:
        raise BadOption("interleave is for pipelines; add pipeline=K to --parallel")
