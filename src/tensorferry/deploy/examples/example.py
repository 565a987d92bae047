"""What an example is: two services, a request to send, and how its models come to be."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PipelineExample:
    """One complete pipeline to begin with."""

    name: str
    title: str
    entry: str  # the service that clients ask
    engine: str  # the service that runs the networks
    input: str  # what clients send
    shape: tuple[int, ...]  # of that, one text of bytes
    request: str  # a file with one
    data: str  # whose data and weights, and under which licence
    rows: tuple[tuple[str, str, str], ...]  # service, model, and what it does
    make: Callable[[Path, int, float], str]  # models into a folder, with so many steps and seconds; says how it did it
    write_request: Callable[[Path], None]
    steps: int = 0  # of training, unless the user says otherwise; 0: nothing is trained
    needs_trust: bool = False  # a model is written in Python
    is_medical: bool = False
