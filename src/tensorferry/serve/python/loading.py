"""From a folder with a `model.py` to a loaded model: its environment, what its class declares, its workers, its warm-up."""

import queue
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from tensorferry.errors import BadModel
from tensorferry.serve.core.config import complete_config
from tensorferry.serve.core.describe import describe_config
from tensorferry.serve.core.ensemble import FindModel
from tensorferry.serve.core.faults import NotFound, RequestFault
from tensorferry.serve.core.model import Outputs
from tensorferry.serve.core.queueing import read_policy
from tensorferry.serve.core.requests import NO_OPTIONS
from tensorferry.serve.core.spec import make_spec
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.tensors import Array
from tensorferry.serve.core.warm_up import warm_up
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.python.model import Completed, PythonModel
from tensorferry.serve.python.process import WorkerOptions
from tensorferry.serve.runtimes.runtime import LoadOptions

_DECLARABLE = ("input", "output", "max_batch_size", "dynamic_batching", "model_transaction_policy")
_ENVIRONMENT = "EXECUTION_ENV_PATH"  # Triton's word for the folder of an environment
_MODEL_FOLDER = "$$TRITON_MODEL_DIRECTORY"  # Triton's word for the model's folder in it
_DEFAULT_SECONDS = 60.0
_LOAD_SECONDS = 600.0


def load_python_model(
    workshop: Workshop,
    folder: Path,
    version: int,
    config: Any,
    options: LoadOptions,
    find: FindModel | None,
    stats: Stats,
    *,
    is_sent: bool,
) -> PythonModel:
    """The model, its workers started and warmed up; raises BadModel."""
    _check(workshop, config, options, is_sent)
    num_instances = sum(max(1, group.count) for group in config.instance_group) or 1
    workers = WorkerOptions(
        path=options.path.resolve(),
        name=config.name,
        version=version,
        python=_find_python(options.parameters, folder),
        num_threads=options.num_threads,
        load_seconds=_read_seconds(options.parameters, "load_timeout_seconds", _LOAD_SECONDS),
    )
    seconds = _read_seconds(options.parameters, "timeout_seconds", _DEFAULT_SECONDS)
    model = PythonModel(version, workers, find or _find_none, workshop.deferred, seconds, stats)

    def complete(declared: dict[str, Any]) -> Completed:
        whole = complete_config(_declare(config, declared), "python", None, 0)
        return whole, make_spec(whole, folder), read_policy(whole, workshop.default_max_queue), describe_config(whole)

    model.load(describe_config(config), num_instances, complete)
    try:
        for _ in range(num_instances):
            warm_up(model.config, model.spec, WarmUpRunner(model), folder)
    except Exception:
        model.close()
        raise
    return model


class WarmUpRunner:
    """Runs the samples of a warm-up through a model's own queue."""

    def __init__(self, model: PythonModel) -> None:
        self.model = model

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """The named outputs, in order."""
        answers: queue.SimpleQueue[Outputs | RequestFault] = queue.SimpleQueue()
        self.model.submit(dict(inputs), NO_OPTIONS, answers.put)
        answer = answers.get()
        if isinstance(answer, RequestFault):
            raise answer
        return [answer[name] for name in outputs]

    def close(self) -> None:
        """It holds nothing."""


def _find_none(name: str, _: str) -> Any:
    raise NotFound(f"there is no model '{name}': this one was loaded by itself")


def _check(workshop: Workshop, config: Any, options: LoadOptions, is_sent: bool) -> None:
    if is_sent:
        raise BadModel(f"{options.path.name} is code, which is not taken from a request; put it into the repository's folder")
    if not workshop.trust:
        raise BadModel(f"{options.path.name} is code that runs as the server does; add --trust to serve it")
    if config.response_cache.enable:
        raise BadModel(f"model '{config.name}' wants the response cache, which a Python model does not have")
    if any(group.rate_limiter.resources for group in config.instance_group):
        raise BadModel(f"model '{config.name}' wants a rate limiter, which a Python model does not have")


def _declare(config: Any, declared: dict[str, Any]) -> Any:
    """`config` with what the class declares, where it says nothing itself."""
    whole = pb.ModelConfig()
    whole.CopyFrom(config)
    told = pb.ModelConfig()
    try:
        json_format.ParseDict({key: declared[key] for key in _DECLARABLE if key in declared}, told)
    except json_format.ParseError as error:
        raise BadModel(f"the class of model '{config.name}' declares something that no configuration has: {error}") from None
    for key in _DECLARABLE:
        field = getattr(told, key)
        if hasattr(field, "SetInParent"):
            if told.HasField(key) and not whole.HasField(key):
                getattr(whole, key).CopyFrom(field)
        elif not getattr(whole, key):
            if isinstance(field, int):
                setattr(whole, key, field)
            else:
                getattr(whole, key).extend(field)
    return whole


def _find_python(parameters: Mapping[str, str], folder: Path) -> Path:
    """The interpreter of the environment that the configuration names; our own where it names none."""
    wanted = parameters.get(_ENVIRONMENT, "")
    if not wanted:
        return Path(sys.executable)
    environment = Path(wanted.replace(_MODEL_FOLDER, str(folder.resolve())))
    python = environment / "bin" / "python"
    if not python.exists():
        raise BadModel(f"{_ENVIRONMENT} is {wanted!r}, which has no bin/python; expected the folder of an environment, unpacked")
    return python.absolute()  # not resolved: an environment is known by where its interpreter seems to be


def _read_seconds(parameters: Mapping[str, str], name: str, default: float) -> float:
    text = parameters.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise BadModel(f"the parameter '{name}' is {text!r}; expected a number of seconds")
    return seconds
