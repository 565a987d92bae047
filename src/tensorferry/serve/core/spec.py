"""What one model takes and gives, in plain values made from its configuration."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import DATATYPES, DTYPES, Array
from tensorferry.serve.proto import inference as pb

_PADDING = "padding"  # the parameter of a configuration that names inputs to pad
_MAX_KNOWN_FORMS = 1024

BatchKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output; -1 in `shape` is any size. A batch dimension is part of `shape`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None  # what the runtime sees after the batch dimension, where it differs
    labels: tuple[str, ...] = ()
    pad_value: float | None = None  # requests of different sizes are padded with it to one batch

    def inner_shape(self, is_batched: bool) -> tuple[int, ...]:
        """`shape` as the runtime sees it."""
        return self.shape if self.reshape is None else self.shape[:is_batched] + self.reshape

    def check(self, dtype: Any, shape: tuple[int, ...]) -> None:
        """Raise InvalidRequest for an array of another type or shape."""
        if dtype != DTYPES[self.datatype]:
            raise InvalidRequest(f"input '{self.name}' is {self.datatype}, received {DATATYPES[dtype]}")
        if len(shape) != len(self.shape) or any(wanted not in (-1, size) for size, wanted in zip(shape, self.shape, strict=True)):
            raise InvalidRequest(f"input '{self.name}' has the shape {list(self.shape)}, received {list(shape)}")

    def reshaped(self, array: Array, is_batched: bool) -> Array:
        """`array` as the runtime takes it."""
        if self.reshape is None:
            return array
        head = array.shape[:1] if is_batched else ()
        sizes = array.shape[len(head) :]
        return array.reshape(head + fill_sizes(self.reshape, self.shape[len(head) :], sizes))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: its tensors, and how many rows a batch may have (0: it has no batch dimension)."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_name: dict[str, TensorSpec] = field(init=False)
    output_names: tuple[str, ...] = field(init=False)
    is_batched: bool = field(init=False)  # whether the first dimension counts rows
    is_padded: bool = field(init=False)  # whether requests of different sizes may share a batch
    is_reshaped: bool = field(init=False)  # whether the runtime sees any input in another shape
    known_forms: dict[BatchKey, tuple[int, BatchKey]] = field(init=False, compare=False)  # rows and key of what was right before

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {spec.name: spec for spec in self.inputs})
        object.__setattr__(self, "output_names", tuple(spec.name for spec in self.outputs))
        object.__setattr__(self, "is_batched", self.max_batch_size > 0)
        object.__setattr__(self, "is_padded", any(spec.pad_value is not None for spec in self.inputs))
        object.__setattr__(self, "is_reshaped", any(spec.reshape is not None for spec in self.inputs))
        object.__setattr__(self, "known_forms", {})

    @property
    def has_fixed_sizes(self) -> bool:
        """Whether every row takes as many bytes as any other."""
        return all(spec.datatype != "BYTES" and -1 not in spec.shape[self.is_batched :] for spec in self.inputs)

    def check_inputs(self, arrays: dict[str, Array]) -> tuple[dict[str, Array], int, BatchKey]:
        """The inputs as the runtime takes them, how many rows they are, and whom they may share a batch with: equal keys."""
        # all of it follows from types and shapes, which a client's requests have in common
        form = tuple([(name, array.dtype, array.shape) for name, array in arrays.items()])
        known = self.known_forms.get(form)
        if known is None:
            self._check(arrays)
        if self.is_reshaped:
            arrays = {name: self.by_name[name].reshaped(array, self.is_batched) for name, array in arrays.items()}
        if known is None:
            known = (self._count_rows(arrays) if self.is_batched else 1, self._batch_key(arrays))
            if len(self.known_forms) < _MAX_KNOWN_FORMS:
                self.known_forms[form] = known
        return arrays, *known

    def check_input(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        """Raise InvalidRequest for what is none of the inputs."""
        spec = self.by_name.get(name)
        if spec is None:
            known = ", ".join(repr(known.name) for known in self.inputs)
            raise InvalidRequest(f"model '{self.name}' has no input {name!r}; it has {known}")
        spec.check(dtype, shape)

    def _check(self, arrays: dict[str, Array]) -> None:
        for name, array in arrays.items():
            self.check_input(name, array.dtype, array.shape)
        if len(arrays) != len(self.inputs):
            missing = [spec.name for spec in self.inputs if not spec.optional and spec.name not in arrays]
            if missing:
                raise InvalidRequest(f"model '{self.name}' also needs the input {', '.join(map(repr, missing))}")
            if not arrays:
                raise InvalidRequest(f"model '{self.name}' needs at least one of its inputs")

    def _batch_key(self, arrays: dict[str, Array]) -> BatchKey:
        """Same inputs, and same sizes wherever nothing is padded."""
        return tuple(
            (name, array.ndim if self.by_name[name].pad_value is not None else array.shape[1:]) for name, array in arrays.items()
        )

    def _count_rows(self, arrays: dict[str, Array]) -> int:
        sizes = {array.shape[0] for array in arrays.values()}
        rows = sizes.pop()
        if sizes:
            raise InvalidRequest(f"the inputs of model '{self.name}' differ in their batch size")
        if not 1 <= rows <= self.max_batch_size:
            raise InvalidRequest(f"model '{self.name}' takes batches of 1 to {self.max_batch_size}, received {rows}")
        return rows


def make_spec(config: Any, folder: Path) -> ModelSpec:
    """The spec that a complete ModelConfig means; label files are read from `folder`."""
    is_batched = config.max_batch_size > 0
    pads = _read_padding(config)
    inputs = tuple(
        TensorSpec(
            name=tensor.name,
            datatype=_read_datatype(config, tensor),
            shape=((-1,) if is_batched else ()) + tuple(tensor.dims),
            optional=tensor.optional,
            reshape=_read_reshape(config, tensor),
            pad_value=pads.pop(tensor.name, None),
        )
        for tensor in config.input
    )
    if pads:
        raise BadModel(f"model '{config.name}' pads {', '.join(pads)}, which is none of its inputs")
    outputs = tuple(
        TensorSpec(
            name=tensor.name,
            datatype=_read_datatype(config, tensor),
            shape=((-1,) if is_batched else ()) + tuple(tensor.dims),
            reshape=_read_reshape(config, tensor),
            labels=_read_labels(folder, tensor.label_filename),
        )
        for tensor in config.output
    )
    return ModelSpec(config.name, config.max_batch_size, inputs, outputs)


def datatype_name(number: int) -> str:
    """The protocol's word for a datatype of a configuration."""
    name = pb.DataType.Name(number).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def datatype_number(datatype: str) -> int:
    """A configuration's number for a datatype of the protocol."""
    return pb.DataType.Value("TYPE_" + ("STRING" if datatype == "BYTES" else datatype))


def fill_sizes(wanted: tuple[int, ...], source: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`wanted` for one tensor: its -1 stand, in order, for the `sizes` where `source` has -1.

    >>> fill_sizes((1, -1, -1), (-1, 3, -1), (7, 3, 5))
    (1, 7, 5)
    """
    variable = iter([size for size, free in zip(sizes, source, strict=False) if free == -1])
    return tuple(next(variable, -1) if size == -1 else size for size in wanted)


def _read_datatype(config: Any, tensor: Any) -> str:
    if not tensor.data_type:
        raise BadModel(f"'{tensor.name}' of model '{config.name}' has no data_type; the model does not tell it, so name it")
    return datatype_name(tensor.data_type)


def _read_reshape(config: Any, tensor: Any) -> tuple[int, ...] | None:
    if not tensor.HasField("reshape"):
        return None
    dims, shape = tuple(tensor.dims), tuple(tensor.reshape.shape)
    if _count_between(dims) != _count_between(shape):
        raise BadModel(
            f"'{tensor.name}' of model '{config.name}' has the dims {list(dims)}, which cannot be reshaped to {list(shape)}: "
            "before, between and after variable sizes both must have as many elements"
        )
    return shape


def _count_between(sizes: tuple[int, ...]) -> list[int]:
    """The elements before, between and after the variable sizes.

    >>> _count_between((2, 4, -1, 6)), _count_between((8, -1, 1, 6))
    ([8, 6], [8, 6])
    """
    counts = [1]
    for size in sizes:
        if size == -1:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def _read_labels(folder: Path, filename: str) -> tuple[str, ...]:
    if not filename:
        return ()
    path = folder / filename
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise BadModel(f"the labels {filename!r} are not in {folder}")
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except UnicodeDecodeError:
        raise BadModel(f"the labels {filename!r} are not UTF-8") from None


def _read_padding(config: Any) -> dict[str, float]:
    text = config.parameters[_PADDING].string_value if _PADDING in config.parameters else ""
    pads: dict[str, float] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = item.rpartition("=")
        try:
            pads[name.strip()] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise BadModel(f"cannot read the padding {item!r} of model '{config.name}'; write for example 'input_ids=0'")
    if pads and config.max_batch_size < 1:
        raise BadModel(f"model '{config.name}' pads but has no batch dimension; give it a max_batch_size")
    return pads
