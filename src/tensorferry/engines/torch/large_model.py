"""Train a model inside a budget: `large_model`.

The first step of every kind (input shape, mode) swaps everything it may while it is recorded. From the record comes a
plan, and the steps after it follow the plan; what they measure (op times, copy rates, peaks) goes into the next plan until
it settles. A step begins with the first tensor that autograd saves after a backward pass, in a new forward pass or when
nothing of the graph is left (a double backward goes on in the same step). So nothing has to be called.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from tensorferry.engines.budget import MIN_NBYTES
from tensorferry.engines.core.history import StepKinds, StepMode, make_report
from tensorferry.engines.core.interrupts import finishing
from tensorferry.engines.torch.choice import StepChoice
from tensorferry.engines.torch.compat import (
    COMPILED_MODULE,
    any_compiled,
    compiler_is_loaded,
    disable_current_modes,
)
from tensorferry.engines.torch.demand import estimate_demand, may_allocate
from tensorferry.engines.torch.early_updates import EarlyUpdates, read_early_option
from tensorferry.engines.torch.evaluation import Evaluation
from tensorferry.engines.torch.history import OpHistory
from tensorferry.engines.torch.hooks import UncopiedHook, clear_backward_errors, refuse_transforms
from tensorferry.engines.torch.layer_names import LayerNames
from tensorferry.engines.torch.limits import BudgetLimits
from tensorferry.engines.torch.model_memory import find_model_memory, find_optimizers, persistent_blocks
from tensorferry.engines.torch.notes import floor_notes
from tensorferry.engines.torch.open_device import DeviceOpener, open_device
from tensorferry.engines.torch.planned import PlannedStep
from tensorferry.engines.torch.reading import announcing_reads
from tensorferry.engines.torch.record import OpMode, Recorder, in_backward, input_blocks
from tensorferry.engines.torch.recording import RecordingStep
from tensorferry.engines.torch.state import OptimizerStates, plain_tensors
from tensorferry.engines.torch.stream.choice import StreamChoice
from tensorferry.engines.torch.swap import Handle, HeldTensor, SavedTensors
from tensorferry.engines.torch.uncompiled import running_uncompiled
from tensorferry.engines.torch.weight_files import place, write_weights
from tensorferry.engines.torch.weights import read_weights_option
from tensorferry.errors import BadModel, BadUse, FerryError
from tensorferry.frameworks import is_keras
from tensorferry.machine import Machine
from tensorferry.messages import find_ours
from tensorferry.plan import Action, find_floor
from tensorferry.report import Report
from tensorferry.tiers import BackedPinnedTier
from tensorferry.units import parse_bytes

_MAX_KINDS = 32  # kinds of step remembered


class AnyStep(Protocol):
    """A step under way."""

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op of the step."""

    def pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        """What autograd is to hold in place of a tensor that it saves."""

    def unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        """The tensor behind a handle, which backward reads."""


def large_model(
    model: torch.nn.Module,
    budget: str | int = "auto",
    *,
    tier: str = "auto",
    recompute: bool = True,
    weights: str | bool = "auto",
    stream: str | bool = False,
    early_updates: bool = False,
    min_nbytes: int = MIN_NBYTES,
    watchdog_seconds: float = 120.0,
) -> "LargeTraining":
    """A context in which training `model` fits a budget in bytes, bit for bit as without it.

    budget: "2GiB", bytes, or "auto" (most of what is free). It is for everything a step holds at once: weights, gradients,
    optimizer state, activations, workspace. tier: "auto", "disk", "disk:/path", "shm", or "pinned" (accelerators).
    recompute: whether cheap ops may run again instead of being swapped. weights: whether weights, their gradients and the
    optimizer's state wait on the tier outside of their use; "auto": where the budget is too small for them to stay. stream:
    whether ops that do not fit run slab by slab, within rounding instead of bit for bit: "auto" where the budget is too small for
    anything exact, with a warning; True at any budget. early_updates: whether each parameter is updated inside backward, as soon
    as its gradient is whole, which is then gone: for loops that call optimizer.step() after every backward pass and do nothing
    with gradients in between. min_nbytes: smaller storages stay.

        with ferry.large_model(model, budget="2GiB") as big:
            for x, y in batches:
                loss_fn(model(x), y).backward()
                optimizer.step(); optimizer.zero_grad()
        print(big.report())
    """
    return LargeTraining(
        model,
        budget,
        tier,
        recompute,
        min_nbytes,
        watchdog_seconds,
        weights=weights,
        stream=stream,
        early_updates=early_updates,
    )


class LargeTraining:
    """What `large_model` returns; enter it once."""

    def __init__(
        self,
        model: torch.nn.Module,
        budget: str | int,
        tier: str,
        recompute: bool,
        min_nbytes: int,
        watchdog_seconds: float,
        open_device: DeviceOpener = open_device,
        *,
        weights: str | bool = "auto",
        stream: str | bool = False,
        early_updates: bool = False,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise BadModel(f"expected a torch.nn.Module, received {type(model).__name__}")
        if is_keras(model):
            import_module("tensorferry.engines.torch.keras_fake_copy")  # a Keras that cannot be followed is refused here
        self._model = model
        self._budget_nbytes = None if budget == "auto" else parse_bytes(budget)
        self._tier_text = tier
        self._recompute = recompute
        self._min_nbytes = min_nbytes
        self._watchdog_seconds = watchdog_seconds
        self._stream = StreamChoice(stream, model)
        self._open_device = open_device
        self._weights = read_weights_option(weights, model)
        self._early_updates = read_early_option(early_updates, model)
        self._kinds: StepKinds[OpHistory] = StepKinds(_MAX_KINDS)
        self._history: OpHistory | None = None
        self._step: AnyStep | None = None
        self._step_over = True  # backward has run, or there was no step yet
        self._forward_begun = False  # since then
        self._num_updates_before = 0  # when it ran
        self._num_steps = 0
        self._num_plans = 0
        self._notes: list[str] = []
        self._highest_nbytes = 0
        self._included_nbytes = 0
        self._entered = False
        self._failed = True  # until the block has ended without an error
        self._error: BaseException | None = None
        self._exit = ExitStack()
        self._part_hooks = ExitStack()  # until the first step has ended

    # entering and leaving

    def __enter__(self) -> "LargeTraining":
        if self._entered:
            raise BadUse("this context was entered before; make a new one with ferry.large_model(...) for each block")
        with ExitStack() as stack:
            memory = find_model_memory(self._model)
            self._earlier = memory.blocks
            self._device, self._tier, self._budget_nbytes = self._open_device(
                self._model, self._tier_text, self._budget_nbytes, memory.nbytes, stack
            )
            self._limits = BudgetLimits(self._budget_nbytes)
            self._store = SavedTensors(
                self._device, min_nbytes=self._min_nbytes, watchdog_seconds=self._watchdog_seconds, tier=self._tier.describe
            )
            self._store.retry.make_room = self._swap_out_all
            is_on_tier = any(parameter.device.type == "meta" for parameter in self._model.parameters())
            sources = place(self._model, self._min_nbytes) if is_on_tier else {}
            self._states = OptimizerStates(self._store, self._model)
            self._choice = StepChoice(
                *(self._model, self._tier, self._limits, self._store, self._states, self._weights, self._stream),
                watchdog_seconds=self._watchdog_seconds,
                note=self._note,
            )
            if self._early_updates:  # before others look at gradients: there are none then
                early = EarlyUpdates(lambda: self._states.optimizers, self._updating)
                stack.enter_context(early.happening(self._model))
            stack.callback(self._choice.close)
            stack.callback(self._close)
            stack.enter_context(self._states.watching(memory.optimizers))
            self._names = LayerNames(self._model, self._before_call)
            stack.enter_context(self._names.watching())
            hook = UncopiedHook(self._before_forward)
            self._root_hook = self._model.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            stack.callback(self._unhook_root)
            stack.callback(self._part_hooks.close)
            for part in self._model.modules():
                if part is not self._model:
                    handle = part.register_forward_pre_hook(UncopiedHook(self._before_part), with_kwargs=True)
                    self._part_hooks.callback(handle.remove)
            stack.enter_context(clear_backward_errors(self._backward_failed))
            stack.enter_context(refuse_transforms())
            stack.enter_context(announcing_reads(self._before_read, self._store.lock))
            if is_keras(self._model):
                stack.enter_context(import_module("tensorferry.engines.torch.keras_release").released_early())
            stack.enter_context(running_uncompiled(self._note_compiled))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            if sources:
                self._choice.begin_on_tier(sources)
            stack.enter_context(OpMode(self._run_op))
            self._exit = stack.pop_all()
        self._entered = True
        return self

    def _note_compiled(self) -> None:
        if any_compiled(self._model) or COMPILED_MODULE in self._names.running:
            self._note("compiled modules run uncompiled here; compare results with the uncompiled model")

    def __exit__(self, exc_type: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._failed = exc_type is not None
        self._error = error
        try:
            self._exit.close()
        finally:
            self._error = None  # its traceback holds frames, and what they hold
        if is_keras(self._model) and (ours := find_ours(error)) is not None and ours is not error:
            raise ours from None

    def _close(self) -> None:
        returning = finishing("weights and optimizer state are coming back from the tier")
        with returning, self._store.lock, ExitStack() as last:  # one that fails keeps none of the others from what it brings back
            last.callback(self._store.retire, bring_back=not self._failed)
            last.callback(self._bring_states_back)
            last.callback(self._stream.close, bring_back=not self._failed)
            self._end_step()
            self._highest_nbytes = self._device.highest_nbytes()
            self._step = None
            if self._failed:
                self._store.abandon()

    def _bring_states_back(self) -> None:
        try:
            if self._choice.window is not None:
                self._choice.window.close()
            self._states.make_all_resident()
        except (FerryError, torch.OutOfMemoryError) as error:
            num_left = self._states.move_to_host()
            if num_left:
                (self._error or error).add_note(
                    f"{num_left} tensors of the optimizer's state found no room on the device and are in host memory now; once "
                    "there is room, optimizer.load_state_dict(optimizer.state_dict()) moves them back."
                )
            if not self._failed:  # after a failure its cause is already on its way to the user
                raise

    # what the hooks call

    def _run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._store.busy:
            return func(*args, **kwargs)
        if self._device.watches_ops:
            self._device.before_op(args, kwargs)
        window = self._choice.window
        if window is None and self._step is not None:  # nearly every op, and a call more is a call more for each
            return self._step.run_op(func, args, kwargs)
        if window is not None:
            also = self._stream.memory_of(args, kwargs)
            return window.run_op(partial(self._run_op_of_step, func, args, kwargs), func, args, kwargs, also)
        return self._run_op_of_step(func, args, kwargs)

    def _run_op_of_step(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._step is None:
            self._states.make_touched_resident(args, kwargs)
            return self._store.run_op(func, args, kwargs)
        return self._step.run_op(func, args, kwargs)

    def _pack(self, tensor: torch.Tensor) -> Handle | HeldTensor:
        if self._step_over and not in_backward() and (self._forward_begun or not self._store.any_alive()):
            self._begin_step(tensor)
        if self._step is None:
            with self._store.lock, self._store.at_work():
                return self._store.save(tensor)[0]
        return self._step.pack(tensor)

    def _unpack(self, handle: Handle | HeldTensor) -> torch.Tensor:
        if in_backward():  # looking at a node's saved tensors is no backward pass
            self._go_on()
            self._step_over = True
            self._num_updates_before = self._states.num_updates
        if self._step is None:
            with self._store.lock, self._store.at_work():
                return self._store.load(handle)
        return self._step.unpack(handle)

    def _swap_out_all(self) -> None:
        """Have nothing on the device that can be elsewhere."""
        if isinstance(self._step, PlannedStep | Evaluation):
            self._step.swap_out_all()
        self._store.swapper.end_copies_out()

    def _before_read(self, tensor: torch.Tensor, lasts: bool) -> None:
        """Somebody reads a tensor's memory without an op; `lasts`: and goes on reading."""
        for plain in () if self._store.busy else plain_tensors((tensor,)):
            self._states.make_touched_resident((plain,), {})
            if self._choice.window is not None and lasts:
                self._choice.window.hold([plain])
            elif self._choice.window is not None:
                self._choice.window.borrow(plain)

    def _go_on(self) -> None:
        if self._choice.window is not None:
            self._choice.window.let_go_of_held()

    def _updating(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> AbstractContextManager[None]:
        return nullcontext() if self._choice.window is None else self._choice.window.updating(optimizer, parameter)

    def _unhook_root(self) -> None:
        self._root_hook.remove()

    def _backward_failed(self) -> None:
        self._step_over = True

    def _before_call(self) -> None:
        """The model, or a part of it, is called."""
        if torch.is_grad_enabled() or not self._step_over or in_backward() or self._store.busy:
            return
        if self._step is None:
            return  # a refusal of the first step names a budget, and Keras builds models without gradients
        if self._states.optimizers and self._states.num_updates == self._num_updates_before:
            return  # the step's update is still to come: its metrics are a part of it
        if not isinstance(self._step, Evaluation) and self._stream.session is None:  # which runs it slab by slab as well
            self._begin_evaluation()

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or in_backward() or self._store.busy:
            return
        if not self._store.any_alive():
            self._step_over = True  # the step before never came to its backward pass
        self._forward_begun = True
        self._go_on()
        self._look_ahead(module, args, kwargs)

    def _before_part(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Where a loop calls the model's parts and never the model, they are all that can be followed."""
        if len(self._names.running) > 1 or not torch.is_grad_enabled() or in_backward() or self._store.busy:
            return
        if find_optimizers(module):  # a part that nobody trains may have no backward pass
            self._look_ahead(module, args, kwargs)

    def _look_ahead(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._choice.knows(module, args, kwargs):
            return
        with self._store.at_work(), disable_current_modes():
            if compiler_is_loaded():  # maybe since the context was entered
                self._note_compiled()
            self._include_earlier(input_blocks(args, kwargs))
            self._choice.look_ahead(module, args, kwargs)

    # steps

    def _begin_step(self, first: torch.Tensor) -> None:
        with self._store.lock, self._store.at_work():
            self._end_step()
            self._step_over = self._forward_begun = False
            if not self._kinds and not self._choice.knows_any:  # it began below the model, in one of its layers
                self._choice.refuse_model_memory()
            streamed = self._stream.begin_step(self._choice.inputs)
            if streamed is not None:
                self._step, self._history = streamed, None
                self._device.return_freed(at_once=True)
                self._device.count_touched(False)
                self._device.keep_spare(0)
                self._store.begin_step(persistent_blocks(self._model))
                if self._choice.window is not None:
                    self._choice.window.begin_step(None)
                return
            # where gradients add up, backward has ops that it has not where there are none yet
            adds_up = any(parameter.grad is not None for parameter in self._model.parameters())
            kind = (first.shape, first.dtype, self._model.training, adds_up)
            # the very first step is cold, and the optimizer makes its state in it: one more is recorded
            num_records = 1 if self._kinds else 2
            history = self._history = self._kinds.find(kind) or self._kinds.add(kind, OpHistory(num_records))
            if history.wants_plan:
                self._plan(history)
            step: RecordingStep | PlannedStep
            reuses_freed = False
            if history.mode is StepMode.RECORDED:
                recorder = Recorder(self._model, self._device, self._names, self._is_counted)
                step = RecordingStep(self._store, recorder, self._states, self._refuse_op)
            else:
                assert history.schedule is not None
                # at a floor above it the margin is given up rather than a training that has begun
                limit_nbytes = max(history.limit_nbytes, history.schedule.plan.floor_nbytes)
                step = PlannedStep(self._store, self._states, history.schedule, limit_nbytes, is_timed=history.wants_times)
                reuses_freed = history.schedule.reuses_freed
                if history.wants_times:
                    self._device.reset_peak()
            self._device.return_freed(at_once=not reuses_freed)
            self._device.count_touched(isinstance(step, RecordingStep))
            self._device.keep_spare(self._limits.limit_nbytes if isinstance(step, PlannedStep) else 0)
            self._step = step
            if isinstance(step, PlannedStep):
                self._store.begin_step(persistent_blocks(self._model), step.log.copies, step.ensure_room)
            else:
                self._store.begin_step(persistent_blocks(self._model))
            if self._choice.window is not None:
                self._choice.window.begin_step(step.recorder.hand_over if isinstance(step, RecordingStep) else None)
            step.swap_out_states()

    def _begin_evaluation(self) -> None:
        with self._store.lock, self._store.at_work():
            self._end_step()
            self._device.return_freed(at_once=True)
            self._device.count_touched(False)
            self._device.keep_spare(0)
            limit_nbytes = self._limits.limit_of_step(self._num_steps, self._num_plans)
            self._step, self._history = Evaluation(self._store, self._states, limit_nbytes, self._refuse_op), None

    def _is_counted(self, tensor: torch.Tensor) -> bool:
        """Whether a trace counts a tensor: of what moves through the window, the window is."""
        return self._device.holds(tensor) and (self._choice.window is None or not self._choice.window.holds(tensor))

    def _end_step(self) -> None:
        step, history = self._step, self._history
        self._step = None
        if step is None or isinstance(step, Evaluation):
            return
        self._num_steps += 1
        self._part_hooks.close()
        if history is None:
            if self._stream.session is not None:
                self._stream.session.end_step()
            return
        if isinstance(step, RecordingStep) and step.recorder.complete:
            self._include_earlier(step.recorder.inputs)
            step.end()
            history.end_recording(step)
        elif isinstance(step, PlannedStep):
            history.end_step(step, self._device.peak_nbytes())

    def _include_earlier(self, inputs: Iterable[tuple[int, int]]) -> None:
        """A batch from before the context is the step's all the same; `inputs` are addresses of blocks and their bytes."""
        earlier = ((self._earlier.get(address), nbytes) for address, nbytes in inputs)
        earlier_nbytes = sum(nbytes for block, nbytes in earlier if block is not None and block() is not None)
        if earlier_nbytes > self._included_nbytes:
            self._device.include(earlier_nbytes - self._included_nbytes)
            self._included_nbytes = earlier_nbytes

    def _plan(self, history: OpHistory) -> None:
        self._states.make_all_resident()  # what is resident now is what the next step starts with
        self._device.trim()
        trace = history.refresh_trace(self._choice.resident_nbytes())
        excess_nbytes = find_floor(trace).nbytes - self._limits.limit_nbytes
        if self._choice.window is not None and excess_nbytes > 0:
            self._choice.window.narrow(excess_nbytes)
            trace = history.refresh_trace(self._choice.resident_nbytes())
        self._limits.refuse_below_floor(trace)
        if history.wants_record:
            return
        name = "this machine" if self._device.type == "cpu" else f"this machine, {self._device.type}"
        tiers = self._tier.speeds() if isinstance(self._tier, BackedPinnedTier) else (self._tier.speed(),)
        machine = Machine(name, memory_nbytes=self.budget_nbytes, tiers=tiers)
        may_reuse = self._device.may_reuse and self._choice.window is None
        history.make_plan(self._limits.limit_nbytes, machine, recompute=self._recompute, may_reuse=may_reuse)
        self._num_plans += 1
        assert history.plan is not None
        self._tier.check_room(history.plan.nbytes(Action.SWAP))

    def _refuse_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held_nbytes: int) -> None:
        """Stop a step that is recorded before an op takes it above the budget."""
        limit_nbytes = self._limits.limit_of_step(self._num_steps, self._num_plans)
        if not may_allocate(limit_nbytes - held_nbytes, args, kwargs):
            return
        demand_nbytes = estimate_demand(func, args, kwargs, limit_nbytes - held_nbytes)
        excess_nbytes = held_nbytes + demand_nbytes - limit_nbytes
        if excess_nbytes > 0 and self._choice.window is not None:
            self._choice.window.narrow(excess_nbytes)
            self._device.trim()
            held_nbytes = self._device.resident_nbytes()
        is_above = held_nbytes + demand_nbytes > limit_nbytes
        if isinstance(self._step, Evaluation):
            self._limits.refuse_op_of_evaluation(func.name(), held_nbytes, demand_nbytes, limit_nbytes, self._model)
            return
        held = self._step.recorder.held_by_kind() if is_above and isinstance(self._step, RecordingStep) else {}
        self._limits.refuse_op(func.name(), held_nbytes, demand_nbytes, limit_nbytes, held)

    # what a user asks

    @property
    def budget_nbytes(self) -> int:
        """The budget; "auto" is known once the context is entered."""
        if self._budget_nbytes is None:
            raise BadUse("an automatic budget is known once the context is entered: with ferry.large_model(...) as big: ...")
        return self._budget_nbytes

    @property
    def peak_nbytes(self) -> int:
        """The most that the steps so far have held at once."""
        if not self._entered:
            raise BadUse("nothing was measured yet: enter the context first")
        return self._highest_nbytes or self._device.highest_nbytes()

    def save_weights(self, path: str | Path) -> None:
        """Write the model's weights to a safetensors file, one after another, so that they need not fit memory all at once."""
        if self._choice.window is None:
            write_weights(self._model, Path(path), lambda _: None, lambda *_: None)
        else:
            write_weights(self._model, Path(path), self._choice.window.borrow, self._choice.window.note_source)

    def report(self) -> Report:
        """What was planned and what was measured, for the kind of step that was last planned."""
        if not self._entered:
            raise BadUse("nothing to report yet: enter the context first")
        history = self._kinds.last_planned
        trace = history.trace if history else None
        streamed = self._stream.session.notes() if self._stream.session is not None else ()
        return make_report(
            history,
            budget_nbytes=self.budget_nbytes,
            peak_nbytes=self.peak_nbytes,
            process_peak_nbytes=0 if self._device.before_nbytes is None else self._device.before_nbytes + self.peak_nbytes,
            num_steps=self._num_steps,
            num_plans=self._num_plans,
            tier=self._tier.describe,
            streamed=self._stream.session,
            notes=(*self._notes, *streamed, *self._store.retry.notes(), *(floor_notes(trace) if trace else ())),
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
