"""The requests that a configuration names, for a model to answer before others do."""

from pathlib import Path
from typing import Any

import numpy as np

from tensorferry.errors import BadModel
from tensorferry.serve.core.faults import RequestFault
from tensorferry.serve.core.spec import ModelSpec, datatype_name
from tensorferry.serve.core.tensors import DTYPES, Array, check_datatype, check_shape, decode_bytes
from tensorferry.serve.runtimes.runtime import Runner


def warm_up(config: Any, spec: ModelSpec, runner: Runner, folder: Path) -> None:
    """Run the samples that a configuration names."""
    for sample in config.model_warmup:
        unknown = [name for name in sample.inputs if name not in spec.by_name]
        if unknown:
            raise BadModel(f"the warm-up '{sample.name}' of model '{config.name}' names the unknown input '{unknown[0]}'")
        try:
            rows = {name: _warm_input(value, folder, name) for name, value in sample.inputs.items()}
            num_rows = max(1, sample.batch_size)
            inputs = {name: np.stack([row] * num_rows) for name, row in rows.items()} if spec.is_batched else rows
            checked, _, _ = spec.check_inputs(inputs)
            for _ in range(max(1, sample.count)):
                runner.run(checked, spec.output_names)
        except RequestFault as fault:
            raise BadModel(f"the warm-up '{sample.name}' of model '{config.name}' failed: {fault}") from None


def _warm_input(value: Any, folder: Path, name: str) -> Array:
    datatype = check_datatype(datatype_name(value.data_type), name)
    shape = check_shape(list(value.dims), name)
    match value.WhichOneof("input_data_type"):
        case "input_data_file":
            path = folder / "warmup" / value.input_data_file
            if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
                raise BadModel(f"the warm-up file {value.input_data_file!r} is not in {folder / 'warmup'}")
            return decode_bytes(datatype, shape, path.read_bytes(), name)
        case "random_data":
            random = np.random.default_rng(0)
            return random.random(shape).astype(DTYPES[datatype]) if datatype != "BYTES" else np.full(shape, b"warm", np.object_)
        case _:
            return np.full(shape, b"", np.object_) if datatype == "BYTES" else np.zeros(shape, DTYPES[datatype])
