"""What a search is doing: one live line on a terminal, a plain line a step elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from tensorferry.inference.building import Tell
from tensorferry.units import format_seconds


@contextmanager
def show_progress(console: Console) -> Iterator[Tell]:
    """Something to tell each step to."""
    begin = time.monotonic()
    if not console.is_terminal:
        yield lambda step: console.print(f"{time.monotonic() - begin:6.1f} s  {step}", markup=False, soft_wrap=True)
        return
    with console.status("starting") as status:
        yield lambda step: status.update(f"{step} [dim]({format_seconds(time.monotonic() - begin)})[/dim]")
