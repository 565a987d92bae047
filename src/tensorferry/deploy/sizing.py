"""From what was measured to what a pod asks for. Where nothing was measured, it says so."""

import math
from dataclasses import dataclass

from tensorferry.deploy.measure import Footprint
from tensorferry.deploy.repository import ModelFolder
from tensorferry.text import printable
from tensorferry.units import format_bytes, format_seconds

_MIB = 2**20
_MEMORY_ROOM = 1.25  # for what grows: caches of the runtimes, threads of a machine with more cores
_MAX_MEMORY_NBYTES = 256 * _MIB  # what clients may make the server hold, unless they are told otherwise
_SLOWER = 10.0  # how much longer than here a load may take: a cold disk, a node under load
_MIN_STARTUP_SECONDS = 60
_BASE_NBYTES = 512 * _MIB  # guessed, for a server with its runtimes
_WEIGHTS_ROOM = 3  # guessed, a model's memory against its files


@dataclass(frozen=True, slots=True)
class PodSize:
    """What a pod asks for, and a note on where each figure comes from, to follow a comment."""

    cpu: str
    memory: str
    max_memory: str
    cache_size: str
    startup_seconds: int
    measured: str
    notes: dict[str, str]


def choose_size(models: ModelFolder, found: Footprint | None) -> PodSize:
    """The size of a pod for these models."""
    cache_size = f"{max(1, math.ceil(2 * models.nbytes / 2**30))}Gi"
    cache_note = f" The models are {format_bytes(models.nbytes)}; an update needs room for old and new."
    if found is None:
        memory_nbytes = _BASE_NBYTES + _WEIGHTS_ROOM * models.nbytes + _MAX_MEMORY_NBYTES
        guess = " NOT MEASURED: a guess"
        return PodSize(
            cpu="1",
            memory=_round_memory(memory_nbytes),
            max_memory=f"{_MAX_MEMORY_NBYTES // _MIB}MiB",
            cache_size=cache_size,
            startup_seconds=600,
            measured="Nothing was measured (--no-measure): set resources and startup.seconds from what you see.",
            notes={
                "cache": cache_note,
                "resources": "",
                "cpu": f"{guess}.",
                "memory": f"{guess} from the size of the files.",
                "startup": f"{guess}, on the long side.",
            },
        )
    memory_nbytes = math.ceil(found.memory_nbytes * _MEMORY_ROOM) + _MAX_MEMORY_NBYTES
    return PodSize(
        cpu=_round_cores(found.cores),
        memory=_round_memory(memory_nbytes),
        max_memory=f"{_MAX_MEMORY_NBYTES // _MIB}MiB",
        cache_size=cache_size,
        startup_seconds=max(_MIN_STARTUP_SECONDS, math.ceil(_SLOWER * found.load_seconds)),
        measured="Memory, cores and seconds to load were measured on the machine that wrote it: a server loaded the models once.",
        notes={
            "cache": cache_note,
            "resources": "",
            "cpu": _note_cores(found),
            "memory": (
                f" Measured: {format_bytes(found.memory_nbytes)} with all models loaded and asked; "
                f"a quarter more, and what clients may make it hold."
            ),
            "startup": f" Measured: {format_seconds(found.load_seconds)} to load; ten times that, at least a minute.",
        },
    )


def _note_cores(found: Footprint) -> str:
    if found.cores is None:
        return f" NOT MEASURED: no request could be made up for {_join(found)}."
    rest = f"; not asked, as their sizes are open: {_join(found)}" if found.not_asked else ""
    return f" Measured: {found.cores:.2f} while one request at a time was answered{rest}."


def _join(found: Footprint) -> str:
    return ", ".join(map(printable, found.not_asked))


def _round_cores(cores: float | None) -> str:
    """Up to a tenth of a core, as Kubernetes writes it.

    >>> _round_cores(0.31), _round_cores(2.0), _round_cores(None)
    ('400m', '2', '1')
    """
    if cores is None:
        return "1"
    tenths = max(1, math.ceil(round(cores * 10, 6)))
    return f"{tenths // 10}" if tenths % 10 == 0 else f"{tenths * 100}m"


def _round_memory(nbytes: int) -> str:
    return f"{math.ceil(nbytes / (64 * _MIB)) * 64}Mi"
