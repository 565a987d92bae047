"""Which layer of a model is running, so that ops can be named after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tensorferry.trace import Phase


class LayerNames:
    """Which layer is running: from forward hooks, and in backward from what was saved."""

    def __init__(self, model: torch.nn.Module, begins: Callable[[], None] | None = None) -> None:
        """`begins` is called before one of the model's modules is, unless it is called by another."""
        self._begins = begins
        self._names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
        self.running: list[str] = []  # the modules that are inside of each other now
        self.wanted = ""

    def current(self, phase: Phase) -> str:
        if phase is Phase.BACKWARD:
            return self.wanted.split(" ")[0]
        return self.running[-1] if self.running else ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, the layer that runs is known."""

        def enter(module: torch.nn.Module, _: Any) -> None:
            if self._begins is not None and not self.running and id(module) in self._names:
                self._begins()
            self.running.append(self._names.get(id(module), type(module).__name__))

        def leave(*_: Any) -> None:
            if self.running:
                self.running.pop()

        hooks = torch.nn.modules.module
        with ExitStack() as stack:
            stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
            stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
            yield
