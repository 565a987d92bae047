"""How steps are to run inside a budget: as they are, with weights that move, or streamed.

It is chosen when a kind of call is first seen, which is followed without being run (`forecast`). What is expected to fit runs as
it is, bit for bit. Where it does not, weights begin to move, which keeps every bit as well. Where even that does not do, and the
user allows it, the step streams, within rounding. What fits in no way is refused, with the budgets that would do.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from tensorferry.engines.torch.compat import tree_leaves
from tensorferry.engines.torch.device import CpuDevice
from tensorferry.engines.torch.forecast import Forecast, forecast
from tensorferry.engines.torch.limits import BudgetLimits, budget_to_name, cold_nbytes
from tensorferry.engines.torch.model_memory import find_optimizers
from tensorferry.engines.torch.open_device import SwapSpace
from tensorferry.engines.torch.state import OptimizerStates, state_blocks
from tensorferry.engines.torch.stream.choice import StreamChoice
from tensorferry.engines.torch.stream.decision import window_nbytes_for
from tensorferry.engines.torch.stream.session import StreamSession
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.engines.torch.wake import wake_kernels
from tensorferry.engines.torch.weights import WeightWindow
from tensorferry.errors import BudgetTooSmall, NotSupported, NotTraceable
from tensorferry.plan import find_floor
from tensorferry.plan.floor import name_both_floors
from tensorferry.plan.weights import WindowedStep, find_windowed
from tensorferry.tiers import FileSlice
from tensorferry.trace import Trace
from tensorferry.units import format_bytes

_MOST_SHARE = 0.9  # of a model's weights: what has them is as good as the model
_MAX_CALLS = 256  # kinds of call remembered
_NO_SOURCES: Mapping[torch.nn.Parameter, FileSlice] = MappingProxyType({})


class StepChoice:
    """What was chosen for the steps of a model."""

    def __init__(
        self,
        model: torch.nn.Module,
        tier: SwapSpace,
        limits: BudgetLimits,
        store: SavedTensors,
        states: OptimizerStates,
        weights: str | bool,
        stream: StreamChoice,
        *,
        watchdog_seconds: float,
        note: Callable[[str], None],
    ) -> None:
        """`weights` and `stream` are what the user allows; `note` is told what the report is to say."""
        self.window: WeightWindow | None = None  # where weights move
        self.inputs: Any = None  # of the forward pass that was last begun
        self._is_guessed = False  # the window was opened before anything was known of a step
        self._model, self._tier, self._limits = model, tier, limits
        self._store, self._states, self._device = store, states, store.device
        self._weights, self._stream = weights, stream
        self._watchdog_seconds = watchdog_seconds
        self._note = note
        self._calls: dict[Any, None] = {}
        self._hooks = ExitStack()

    def close(self) -> None:
        """Nothing more moves."""
        self._hooks.close()

    def begin_on_tier(self, sources: Mapping[torch.nn.Parameter, FileSlice]) -> None:
        """Have weights move that were never in memory; each of `sources` is where one of them is read from."""
        self.open_window(self._limits.limit_nbytes // 2, sources)
        self._weights = self._is_guessed = True

    @property
    def knows_any(self) -> bool:
        """Whether any call was followed."""
        return bool(self._calls)

    def knows(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is of a kind that something was chosen for; it is the one that `inputs` tells of from now on."""
        self.inputs = _kind_of_call(module, args, kwargs, self._device.type)
        return self.inputs in self._calls

    def refuse_model_memory(self) -> None:
        """Refuse a budget that weights, and whatever else there is before a step, are above by themselves."""
        state_nbytes = sum(state.nbytes for state in self._states.find())
        self._limits.refuse_model(self._model, self._device.resident_nbytes() - state_nbytes)

    def look_ahead(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Choose for a call that is not known yet; raises for a step that cannot fit, or that the tier has no room for."""
        self._forecast(module, args, kwargs)
        self._calls[self.inputs] = None  # what was refused is refused again
        if len(self._calls) > _MAX_CALLS:
            del self._calls[next(iter(self._calls))]

    def _forecast(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizers = find_optimizers(module)
        for optimizer in optimizers:
            self._states.meet(optimizer)
        states = self._states.find()
        try:
            expected: Forecast | None = forecast(module, args, kwargs, optimizers, self._store.min_nbytes)
        except NotTraceable as reason:
            self._note(f"could not be traced before the first step: {reason}")
            expected = None
        if expected is not None and expected.note:
            self._note(expected.note)
        if expected is not None and isinstance(self._device, CpuDevice):
            wake_kernels(expected.trace.ops)
        self._device.trim()  # what was freed, by following the step too, is no part of it
        if expected is None:
            if self._weights is True and self.window is None:
                self.open_window(self._limits.limit_nbytes // 2)
            self.refuse_model_memory()
            if self._stream.option is True:
                self._begin_streaming(args, kwargs, None, None)
            return
        # state that is not in the forecast can wait elsewhere all that time
        followed = set(state_blocks(expected.optimizers))
        waiting_nbytes = sum(state.nbytes for state in states if state.address not in followed)
        trace = expected.on_top_of(self._device.resident_nbytes() - waiting_nbytes)
        trace = replace(trace, overhead_nbytes=max(0, trace.overhead_nbytes))  # what the process gave back meanwhile is no room
        if self._stream.option is True:
            self._begin_streaming(args, kwargs, trace, None)
            self._tier.check_room(waiting_nbytes + self._stream.stored_nbytes(trace, self.inputs))
            return
        exact = self._let_weights_move(trace)
        try:
            self._limits.refuse_below_floor(exact, is_cold=True, is_part=not _is_most_of(module, self._model))
        except BudgetTooSmall as error:
            if error.smallest_nbytes is None or self._device.type != "cpu":
                raise
            streamed_nbytes = min(floor_nbytes for floor_nbytes, _ in self._streamed_floors(trace, args, kwargs))
            if streamed_nbytes >= error.smallest_nbytes:
                raise
            if not self._stream.option or streamed_nbytes > self._limits.budget_nbytes:
                raise name_both_floors(error, streamed_nbytes) from None
            self._begin_streaming(args, kwargs, trace, error.smallest_nbytes)
            self._tier.check_room(waiting_nbytes + self._stream.stored_nbytes(trace, self.inputs))
            return
        # the step that is recorded swaps all of it
        self._tier.check_room(waiting_nbytes + sum(exact.storages[s].nbytes for s in exact.movable))

    def _streamed_floors(
        self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[int, WindowedStep | None]]:
        """The budgets to name for a step that streams, with its weights resident and in a window, as far as the user wants."""
        ways: list[WindowedStep | None] = [] if self.window is not None or self._weights is True else [None]
        windowed = find_windowed(trace, self._store.min_nbytes)
        if not ways or (self._weights is not False and windowed.nbytes):
            ways.append(windowed)
        return [(budget_to_name(self._stream.floor_nbytes(trace, args, kwargs, way)), way) for way in ways]

    def _begin_streaming(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], trace: Trace | None, exact_nbytes: int | None
    ) -> None:
        """Stream steps of such inputs; `exact_nbytes` is the smallest budget without, where that is why."""
        device = self._device
        if not isinstance(device, CpuDevice):
            raise NotSupported(f"stream=True works on the CPU, and this model is on {device.type!r}; leave it out")
        if self.window is None and trace is not None:
            ways = self._streamed_floors(trace, args, kwargs)
            fits_as_it_is = ways[0][1] is None and ways[0][0] <= self._limits.budget_nbytes
            _, windowed = ways[0] if fits_as_it_is else min(ways, key=lambda way: way[0])
            if windowed is not None:
                self.open_window(window_nbytes_for(windowed, self._limits.limit_nbytes))
        is_first = self._stream.session is None
        session = self._stream.begin(
            self.inputs,
            args,
            kwargs,
            self.window,
            lambda: StreamSession(
                device, self._store, self._states, self._limits.limit_nbytes, self._limits.budget_nbytes, self._watchdog_seconds
            ),
        )
        if is_first and self._stream.option == "auto":
            session.warn(exact_nbytes, self._limits.budget_nbytes)

    def _let_weights_move(self, trace: Trace) -> Trace:
        """The trace of a step as it will run: where it does not fit otherwise, weights begin to move."""
        if self.window is None:
            if self._weights is False or (self._weights == "auto" and self._limits.fits(find_floor(trace).nbytes)):
                return trace
            windowed = find_windowed(trace, self._store.min_nbytes)
            if self._weights == "auto" and not self._limits.fits(windowed.floor.nbytes):
                narrowest = windowed.with_window(windowed.min_window_nbytes)
                return min(trace, narrowest, key=lambda each: find_floor(each).nbytes)  # whose floor is named
            self.open_window(windowed.window_for(self._limits.limit_nbytes - cold_nbytes(windowed.floor.nbytes)))
        assert self.window is not None
        windowed = find_windowed(trace, self._store.min_nbytes)
        if self._is_guessed:
            self._is_guessed = False
            self.window.window_nbytes = max(self.window.min_nbytes, windowed.window_for(self._limits.limit_nbytes))
        return windowed.with_window(self.window.window_nbytes)

    def open_window(self, window_nbytes: int, sources: Mapping[torch.nn.Parameter, FileSlice] = _NO_SOURCES) -> None:
        """Have weights, their gradients and the optimizer's state move from now on."""
        window = self.window = WeightWindow(self._store, self._model, window_nbytes)
        self._states.leave_to(window)
        self._hooks.enter_context(window.moving(self._states.optimizers, sources))
        self._device.trim()
        self._device.forget_highest()  # what was built in memory before was the user's own
        self._note(
            f"weights, their gradients and the optimizer's state wait on {self._tier.describe} outside of their use; "
            f"{format_bytes(window_nbytes)} of them are resident at most"
        )

    def resident_nbytes(self) -> int:
        """What is resident before a step, with a full window."""
        resident_nbytes = self._device.resident_nbytes()
        if self.window is None:
            return resident_nbytes
        return resident_nbytes - self.window.resident_nbytes + self.window.window_nbytes


def _kind_of_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> Any:
    """What a forecast of a call depends on, as far as is known; numbers are left out, since one may count steps."""
    leaves = tree_leaves((args, kwargs))
    tensors = tuple((t.shape, t.dtype, t.requires_grad) for t in leaves if isinstance(t, torch.Tensor))
    switches = tuple(value for value in leaves if value is None or isinstance(value, bool | str))
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return weakref.ref(module), module.training, tuple(kwargs), tensors, switches, autocast


def _is_most_of(part: torch.nn.Module, model: torch.nn.Module) -> bool:
    part_nbytes, all_nbytes = (sum(p.nbytes for p in module.parameters()) for module in (part, model))
    return part_nbytes >= _MOST_SHARE * all_nbytes
