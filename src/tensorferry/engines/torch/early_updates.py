"""Updates inside backward: a parameter is updated as soon as its gradient is whole, and the gradient is gone.

So the gradients of a model never stand together, and where weights wait on a tier each of them comes in once for its gradient and
its update. LoHan (arXiv:2403.06504) does this from SSDs; torch's tutorials do it with an optimizer for each parameter. Here the
user's own optimizer does it, with one parameter at a time. For the optimizers below that gives the same bits, since they look at
no parameter but the one they update. Its `step()` afterwards finds no gradients and changes nothing.

Limit: what a loop does with gradients between backward and `step()` comes too late. What of it can be seen is an error.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensorferry.engines.torch.compat import GRADIENT_CLIPPERS, clip_module, plain_step
from tensorferry.errors import BadOption, BadUse, NotSupported
from tensorferry.frameworks import is_keras

_SINGLE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)  # what updates a parameter from its own gradient and state alone


class EarlyUpdates:
    """Updates parameters of a model in its backward passes, and sees to it that nobody wants their gradients later."""

    takes_gradient = False  # see `takes_gradients_early`: a forecast may follow the optimizers all the same

    def __init__(
        self,
        find_optimizers: Callable[[], Iterable[torch.optim.Optimizer]],
        updating: Callable[[torch.optim.Optimizer, torch.Tensor], AbstractContextManager[None]],
    ) -> None:
        """`updating`: what an update of a parameter is to happen inside of."""
        self._find_optimizers = find_optimizers
        self._updating = updating
        self._of: dict[int, tuple[torch.optim.Optimizer, dict[str, Any]]] = {}  # by the id of a parameter
        self._updated: dict[int, torch.optim.Optimizer] = {}  # since its optimizer's last step

    @contextmanager
    def happening(self, model: torch.nn.Module) -> Iterator[None]:
        """While inside, a model's parameters are updated in backward."""
        with ExitStack() as stack:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    stack.callback(parameter.register_post_accumulate_grad_hook(self).remove)
            stack.callback(register_optimizer_step_post_hook(self._note_step).remove)
            for name in GRADIENT_CLIPPERS:
                stack.callback(setattr, clip_module, name, getattr(clip_module, name))
                setattr(clip_module, name, _refuse_clipping)
            yield

    def __call__(self, parameter: torch.Tensor) -> None:
        """A gradient is whole."""
        found = self._find(parameter)
        if found is None:
            return
        optimizer, group = found
        if id(parameter) in self._updated:
            raise BadUse(
                "a second backward pass came before optimizer.step(), and with early_updates=True the first one has updated "
                "parameters. Leave it out where gradients add up over several passes, or where a step may be skipped."
            )
        self._updated[id(parameter)] = optimizer
        groups = optimizer.param_groups
        with self._updating(optimizer, parameter):
            optimizer.param_groups = [group | {"params": [parameter]}]
            try:
                plain_step(optimizer)
            finally:
                optimizer.param_groups = groups
        parameter.grad = None

    def _find(self, parameter: torch.Tensor) -> tuple[torch.optim.Optimizer, dict[str, Any]] | None:
        """The optimizer of a parameter, and its group there as it is now."""
        optimizer, group = self._of.get(id(parameter), (None, None))
        if optimizer is None or not any(group is each for each in optimizer.param_groups):  # its groups may be others by now
            self._of = {}
            for each in self._find_optimizers():
                for its_group in each.param_groups:
                    self._of.update((id(p), (each, its_group)) for p in its_group["params"])
        found = self._of.get(id(parameter))
        if found is not None and type(found[0]) not in _SINGLE:
            raise BadUse(
                f"early_updates=True works with {', '.join(kind.__name__ for kind in _SINGLE)}, which look at one parameter at a "
                f"time; received {type(found[0]).__name__}. Leave early_updates out."
            )
        return found

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updated = {key: updated_by for key, updated_by in self._updated.items() if updated_by is not optimizer}


def read_early_option(early_updates: object, model: torch.nn.Module) -> bool:
    """The `early_updates` that a user gave."""
    if early_updates not in (True, False):
        raise BadOption(f"expected early_updates to be True or False, received {early_updates!r}")
    if early_updates and is_keras(model):
        raise NotSupported("early_updates=True works with torch's own optimizers, and this is a Keras model; leave it out")
    if early_updates and torch.distributed.is_available() and torch.distributed.is_initialized():
        raise NotSupported("early_updates=True would update before gradients are exchanged with other processes; leave it out")
    return bool(early_updates)


def _refuse_clipping(*_: Any, **__: Any) -> Any:
    raise BadUse(
        "gradients cannot be clipped after backward with early_updates=True: they are gone, and the parameters are updated. "
        "Leave it out."
    )
