"""Weights that move through a window of a few layers, whatever the budget has room for."""

from typing import Any

from tensorferry.engines.torch import LargeTraining


class InANarrowWindow(LargeTraining):
    def __init__(self, window_nbytes: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._window_nbytes = window_nbytes

    def __enter__(self) -> LargeTraining:
        super().__enter__()
        open_window = self._choice.open_window
        self._choice.open_window = lambda _: open_window(self._window_nbytes)  # type: ignore[method-assign]
        return self
