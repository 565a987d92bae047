"""Compiled functions, which run op by op inside the context.

A compiled function is one opaque op whose tensors cannot be told apart, and compiling one would take the engine's own hooks for
a part of it. So the compiler is told to stand back: at once where it is loaded, and otherwise as soon as somebody loads it, by
compiling something or by making an optimizer. Loading it to find out would be dear.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import torch

from tensorferry.engines.torch.compat import COMPILER, compiler_is_loaded


@contextmanager
def running_uncompiled(loaded: Callable[[], None]) -> Iterator[None]:
    """While inside, what was compiled or will be runs op by op; `loaded` is called once the compiler is there."""
    with ExitStack() as stack:

        def stand_back() -> None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_no_hook_warnings())
            loaded()

        if compiler_is_loaded():
            stand_back()
        else:
            stack.enter_context(_after_import(COMPILER, stand_back))
        yield


@contextmanager
def _after_import(name: str, imported: Callable[[], None]) -> Iterator[None]:
    """While inside, `imported` is called when a module of that name has been loaded for the first time."""
    finder = _ToldOfImport(name, imported)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _ToldOfImport(MetaPathFinder, Loader):
    """Finds and loads one module as the other finders do."""

    def __init__(self, name: str, imported: Callable[[], None]) -> None:
        self._name = name
        self._imported = imported
        self._loader: Loader | None = None

    def remove(self) -> None:
        """Leave the import system as it was."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname != self._name:
            return None
        self.remove()  # the others are asked, and this is done once
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # nothing of this is left in the module
        self._loader.exec_module(module)
        self._imported()


@contextmanager
def _no_hook_warnings() -> Iterator[None]:
    """While inside, a compiled module does not warn that hooks of all modules run once more for it; those here may."""
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        with suppress(ValueError):  # the user has set others
            warnings.filters.remove(ours)  # type: ignore[attr-defined]
