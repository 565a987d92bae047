"""PyTorch: programs of `torch.export` (`.pt2`), and TorchScript (`.pt`) for who trusts the file."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import InvalidRequest, ModelFault
from tensorferry.serve.core.tensors import DTYPES, Array
from tensorferry.serve.runtimes.exported_program import load_program
from tensorferry.serve.runtimes.program_calls import check_calls
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature, TensorSignature, in_one_line

_DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


def load(options: LoadOptions) -> "TorchRuntime":
    """The module of a `.pt2` or `.pt` file."""
    torch.set_num_threads(options.num_threads)
    device = torch.device("cpu" if options.device == "cpu" else f"cuda:{options.device_id}")
    if options.path.suffix == ".pt2":
        return _load_exported(options, device)
    return _load_script(options, device)


class TorchRuntime:
    """One module for all runners."""

    def __init__(
        self,
        module: Any,
        device: torch.device,
        signature: Signature | None,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
    ) -> None:
        self.module = module
        self.device = device
        self.signature = signature
        self.input_names = input_names
        self.output_names = output_names

    def new_runner(self) -> "TorchRunner":
        """One more runner of the same module."""
        return TorchRunner(self)

    def close(self) -> None:
        """Drop the module."""
        del self.module


class TorchRunner:
    """Calls the module without recording gradients."""

    def __init__(self, runtime: TorchRuntime) -> None:
        self.runtime = runtime

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs."""
        runtime = self.runtime
        tensors = [_to_tensor(inputs[name]).to(runtime.device) for name in runtime.input_names if name in inputs]
        try:
            with torch.inference_mode():
                results = _flatten(runtime.module(*tensors))
        except Exception as error:  # a model may raise whatever it likes
            raise InvalidRequest(f"the model cannot run these inputs: {in_one_line(error)}") from None
        if len(results) != len(runtime.output_names):
            raise ModelFault(f"the model gave {len(results)} outputs, its configuration names {len(runtime.output_names)}")
        by_name = dict(zip(runtime.output_names, results, strict=True))
        return [_to_array(by_name[name]) for name in outputs]

    def close(self) -> None:
        """Drop the module."""
        del self.runtime


def _load_exported(options: LoadOptions, device: torch.device) -> TorchRuntime:
    try:
        with _quiet():
            program = load_program(options.path, options.trust)
    except BadModel:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        reason = in_one_line(error)
        if "warnings above" in reason:  # which nobody sees
            reason = "it is damaged, or no program of torch.export"
        raise BadModel(f"PyTorch cannot load {options.path.name}: {reason}") from None
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = tuple(_read(name, nodes[str(name)].meta["val"]) for name in program.graph_signature.user_inputs)
    made = [nodes[str(name)].meta["val"] for name in program.graph_signature.user_outputs]
    names = options.output_names or _name_outputs(program, len(made))
    if len(names) != len(made):
        raise BadModel(f"{options.path.name} has {len(made)} outputs, its configuration names {len(names)}")
    outputs = tuple(_read(name, value) for name, value in zip(names, made, strict=True))
    module = program.module().to(device)
    if not options.trust:
        check_calls(module)
    return TorchRuntime(module, device, Signature(inputs, outputs), tuple(tensor.name for tensor in inputs), names)


def _load_script(options: LoadOptions, device: torch.device) -> TorchRuntime:
    if not options.trust:
        raise BadModel(
            f"{options.path.name} is TorchScript, which may carry code; "
            "export it with torch.export to a .pt2, or start with --trust"
        )
    if not options.input_names or not options.output_names:
        raise BadModel(f"{options.path.name} does not tell its inputs and outputs; name them in config.pbtxt")
    try:
        with _quiet():
            module = torch.jit.load(str(options.path), map_location=device).eval()
    except RuntimeError as error:
        raise BadModel(f"PyTorch cannot load {options.path.name}: {in_one_line(error)}") from None
    return TorchRuntime(module, device, None, options.input_names, options.output_names)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch logs the traceback of a damaged file and warns of TorchScript; the error, or the answers, say what is to be said."""
    logger = logging.getLogger("torch.export")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _name_outputs(program: Any, num_outputs: int) -> tuple[str, ...]:
    spec = program.call_spec.out_spec
    if spec is not None and spec.type is dict and len(spec.context) == num_outputs:
        return tuple(map(str, spec.context))
    return tuple(f"OUTPUT__{index}" for index in range(num_outputs))


def _read(name: object, value: Any) -> TensorSignature:
    if not isinstance(value, torch.Tensor) or value.dtype not in _DATATYPES:
        raise BadModel(f"'{name}' is not a tensor of a datatype that can be served")
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSignature(str(name), _DATATYPES[value.dtype], shape)


def _flatten(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [tensor for value in values for tensor in _flatten(value)]


def _to_tensor(array: Array) -> torch.Tensor:
    if array.dtype == DTYPES["BF16"]:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["BF16"])
    return tensor.numpy()
