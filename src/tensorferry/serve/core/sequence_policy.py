"""Sequence batching as a configuration asks for it: the strategy, the control inputs, and the states that the server keeps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.fixed_rows import FixedRows
from tensorferry.serve.core.requests import SequenceStep
from tensorferry.serve.core.spec import datatype_name
from tensorferry.serve.core.tensors import DTYPES, Array, decode_bytes
from tensorferry.serve.proto import inference as pb

_DEFAULT_IDLE_SECONDS = 1.0
_DEFAULT_MAX_SEQUENCES = 4096
_FLAGS = ("bool_false_true", "int32_false_true", "fp32_false_true")
_FLAG_TYPES = {"bool_false_true": "BOOL", "int32_false_true": "INT32", "fp32_false_true": "FP32"}


@dataclass(frozen=True, slots=True)
class ControlInput:
    """An input that the server fills in: whether a request starts or ends its sequence, that it is one, or which."""

    name: str
    kind: str  # START, END, READY or CORRID
    datatype: str
    values: tuple[Any, Any] = (0, 1)  # for false and true

    @property
    def idle(self) -> Any:
        """Its value in a row without a request."""
        if self.kind == "CORRID":
            return b"" if self.datatype == "BYTES" else 0
        return self.values[False]

    def make(self, step: SequenceStep, is_batched: bool) -> Array:
        """Its array for one request."""
        shape = (1, 1) if is_batched else (1,)
        if self.kind != "CORRID":
            is_true = {"START": step.is_start, "END": step.is_end}.get(self.kind, True)
            return np.full(shape, self.values[is_true], DTYPES[self.datatype])
        value: Any = step.id
        if self.datatype == "BYTES":
            value = str(value).encode()
        elif isinstance(value, str) or value > np.iinfo(DTYPES[self.datatype]).max:
            raise InvalidRequest(f"the sequence_id {value!r} is no {self.datatype}, which the model takes it as")
        array: Array = np.empty(shape, DTYPES[self.datatype])
        array[...] = value
        return array


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor that goes from an output to an input of the next request of a sequence."""

    input_name: str
    output_name: str
    initial: Array  # with a batch dimension of one, where the model has one


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """How requests of sequences are treated."""

    idle_seconds: float
    num_slots: int  # sequences that run on one instance at a time
    max_sequences: int  # that there may be, those that wait for an instance among them
    controls: tuple[ControlInput, ...]
    states: tuple[StateTensor, ...]
    rows: FixedRows | None = None  # where each slot of an instance is a row of its batches
    is_iterative: bool = False  # a request is a sequence by itself, which the model sees until it is over


def read_sequences(config: Any, folder: Path, *, is_python: bool) -> SequencePolicy:
    """The policy of a configuration with `sequence_batching`; raises BadModel."""
    batching = config.sequence_batching
    if batching.iterative_sequence and (batching.state or not is_python):
        raise BadModel(
            f"model '{config.name}' has an iterative_sequence; only a Python model that keeps its own state can do that"
        )
    controls = tuple(_read_controls(config))
    rows = max(1, config.max_batch_size)
    # states of ours, and those of a model that asks for the sequence, follow their request to whatever row it is in
    has_fixed_rows = not (batching.HasField("oldest") or is_python or batching.state) and rows > 1
    if batching.HasField("oldest"):
        rows = max(1, batching.oldest.max_candidate_sequences)
    elif has_fixed_rows and not any(control.kind == "READY" for control in controls):
        rows, has_fixed_rows = 1, False  # the model could not tell an empty row from a request
    return SequencePolicy(
        idle_seconds=batching.max_sequence_idle_microseconds / 1e6 or _DEFAULT_IDLE_SECONDS,
        num_slots=rows,
        max_sequences=_read_max_sequences(config),
        controls=controls,
        states=tuple(_read_state(config, state, folder) for state in batching.state),
        rows=FixedRows(rows, {control.name: control.idle for control in controls}) if has_fixed_rows else None,
        is_iterative=batching.iterative_sequence,
    )


def without_sequences(config: Any, policy: SequencePolicy) -> Any:
    """The configuration of one instance by itself: controls and states are inputs and outputs as others."""
    plain = pb.ModelConfig()
    plain.CopyFrom(config)
    plain.ClearField("sequence_batching")
    batching = config.sequence_batching
    if config.max_batch_size > 1 and policy.num_slots > 1:
        plain.dynamic_batching.SetInParent()
        if batching.HasField("oldest"):
            plain.dynamic_batching.max_queue_delay_microseconds = batching.oldest.max_queue_delay_microseconds
            plain.dynamic_batching.preferred_batch_size.extend(batching.oldest.preferred_batch_size)
        elif batching.direct.minimum_slot_utilization > 0:
            few = min(math.ceil(batching.direct.minimum_slot_utilization * policy.num_slots), config.max_batch_size)
            plain.dynamic_batching.max_queue_delay_microseconds = batching.direct.max_queue_delay_microseconds
            plain.dynamic_batching.preferred_batch_size.extend(range(few, config.max_batch_size + 1))
    for group in plain.instance_group[1:]:
        plain.instance_group.remove(group)
    if plain.instance_group:
        plain.instance_group[0].count = 1
    if plain.input:  # else the model's file tells all of them
        for control in policy.controls:
            plain.input.add(name=control.name, data_type=_number(control.datatype), dims=[1])
        for state in batching.state:
            plain.input.add(name=state.input_name, data_type=state.data_type, dims=state.dims)
    if plain.output:
        for state in batching.state:
            plain.output.add(name=state.output_name, data_type=state.data_type, dims=state.dims)
    return plain


def with_sequences(plain: Any, config: Any, policy: SequencePolicy) -> Any:
    """The configuration that clients see: an instance's, as it completed it, without what the server fills in."""
    whole = pb.ModelConfig()
    whole.CopyFrom(plain)
    whole.ClearField("dynamic_batching")
    whole.sequence_batching.CopyFrom(config.sequence_batching)
    whole.ClearField("instance_group")
    whole.instance_group.extend(config.instance_group or plain.instance_group)
    hidden = {control.name for control in policy.controls} | {state.input_name for state in policy.states}
    made = {state.output_name for state in policy.states}
    for tensors, names in ((whole.input, hidden), (whole.output, made)):
        known = {tensor.name for tensor in tensors}
        lacking = names - known
        if lacking:
            raise BadModel(f"model '{config.name}' has no tensor {', '.join(map(repr, sorted(lacking)))} for its sequences")
        for tensor in [tensor for tensor in tensors if tensor.name in names]:
            tensors.remove(tensor)
    return whole


def _read_max_sequences(config: Any) -> int:
    text = config.parameters["max_sequences"].string_value if "max_sequences" in config.parameters else ""
    if text and not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise BadModel(f"the parameter 'max_sequences' is {text!r}; expected a whole number from one up")
    return int(text or _DEFAULT_MAX_SEQUENCES)


def _read_controls(config: Any) -> Iterator[ControlInput]:
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            kind = pb.ModelSequenceBatching.Control.Kind.Name(control.kind).removeprefix("CONTROL_SEQUENCE_")
            if kind == "CORRID":
                yield ControlInput(tensor.name, kind, datatype_name(control.data_type or _number("UINT64")))
                continue
            flag = next((flag for flag in _FLAGS if len(getattr(control, flag)) == 2), None)
            if flag is None:
                raise BadModel(f"the control '{tensor.name}' of model '{config.name}' needs two values, such as [0, 1]")
            values = getattr(control, flag)
            yield ControlInput(tensor.name, kind, _FLAG_TYPES[flag], (values[0], values[1]))


def _read_state(config: Any, state: Any, folder: Path) -> StateTensor:
    datatype = datatype_name(state.data_type)
    if len(state.initial_state) > 1:
        raise BadModel(f"the state '{state.input_name}' of model '{config.name}' has several initial states; expected one")
    first = state.initial_state[0] if state.initial_state else None
    shape = [max(size, 1) for size in (first.dims if first is not None and first.dims else state.dims)]
    if first is not None and first.data_file:
        path = folder / "initial_state" / first.data_file
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise BadModel(f"the initial state {first.data_file!r} is not in {folder / 'initial_state'}")
        initial = decode_bytes(datatype, tuple(shape), path.read_bytes(), state.input_name)
    elif datatype == "BYTES":
        initial = np.full(shape, b"", np.object_)
    else:
        initial = np.zeros(shape, DTYPES[datatype])
    return StateTensor(state.input_name, state.output_name, initial[None] if config.max_batch_size else initial)


def _number(datatype: str) -> int:
    number: int = pb.DataType.Value("TYPE_" + ("STRING" if datatype == "BYTES" else datatype))
    return number
