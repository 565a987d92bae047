"""Which steps of a training stream: those of inputs for which nothing exact fits, or all of them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.record import input_blocks
from tensorferry.engines.torch.stream.decision import count_rows, streamed_floor_nbytes
from tensorferry.engines.torch.stream.rules import can_stream
from tensorferry.engines.torch.stream.session import StreamedStep, StreamSession
from tensorferry.engines.torch.stream.tensor import StreamedTensor
from tensorferry.errors import BadOption
from tensorferry.plan.weights import WindowedStep
from tensorferry.trace import Trace

Inputs = Any  # what tells one kind of step from another


class StreamChoice:
    """The `stream` that a user gave, and what came of it."""

    def __init__(self, option: str | bool, model: torch.nn.Module) -> None:
        if option not in ("auto", True, False):
            raise BadOption(f"expected stream to be True, False or 'auto', received {option!r}")
        self.option = option
        self.session: StreamSession | None = None
        self._model = model
        self._held_nbytes: dict[Inputs, int] = {}  # by inputs whose steps stream: what those hold all of the time

    def begin(
        self,
        inputs: Inputs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        window_nbytes: int | None,
        make_session: Callable[[], StreamSession],
    ) -> StreamSession:
        """Steps of these inputs stream from now on; `window_nbytes`: of weights that move."""
        held_nbytes = sum(nbytes for _, nbytes in input_blocks(args, kwargs)) + sum(b.nbytes for b in self._model.buffers())
        weights_nbytes = sum(p.nbytes * (1 + p.requires_grad) for p in self._model.parameters())
        self._held_nbytes[inputs] = held_nbytes + (weights_nbytes if window_nbytes is None else window_nbytes)
        if self.session is None:
            self.session = make_session()
        return self.session

    def begin_step(self, inputs: Inputs) -> StreamedStep | None:
        """A step of these inputs; None where it does not stream."""
        if self.session is None or inputs not in self._held_nbytes:
            return None
        return self.session.begin_step(self._held_nbytes[inputs])

    def floor_nbytes(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any], windowed: WindowedStep | None) -> int:
        """What a step is expected to need where it streams, and with its weights moving where `windowed` says how."""
        return streamed_floor_nbytes(trace, count_rows(tree_leaves((args, kwargs))), can_stream, windowed)

    def memory_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """Tensors in memory that streamed arguments of an op are functions of."""
        if self.session is not None:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, StreamedTensor):
                    yield from leaf.cell.source.memory()

    def stored_nbytes(self, trace: Trace, inputs: Inputs) -> int:
        """What such a step has on the tier at once."""
        assert self.session is not None
        return self.session.stored_nbytes(trace, self._held_nbytes[inputs])

    def close(self, *, bring_back: bool) -> None:
        """See `StreamSession.close`."""
        if self.session is not None:
            self.session.close(bring_back=bring_back)
