"""From a version's folder to a loaded model: configuration, runtime, instances, warm-up."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel, FerryError
from tensorferry.serve.core.config import complete_config
from tensorferry.serve.core.ensemble import FindModel
from tensorferry.serve.core.limiter import read_needs
from tensorferry.serve.core.model import Model, RuntimeModel
from tensorferry.serve.core.probe import has_independent_rows
from tensorferry.serve.core.queueing import read_policy
from tensorferry.serve.core.scheduler import Instance, Scheduler
from tensorferry.serve.core.sequence_policy import SequencePolicy, read_sequences, with_sequences, without_sequences
from tensorferry.serve.core.sequences import SequenceModel
from tensorferry.serve.core.spec import make_spec
from tensorferry.serve.core.stats import Stats
from tensorferry.serve.core.warm_up import warm_up
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.python.loading import load_python_model
from tensorferry.serve.runtimes.runtime import LoadOptions, Runner, Runtime
from tensorferry.serve.runtimes.table import BACKENDS, find_backend, load_runtime
from tensorferry.serve.runtimes.worker import WorkerRuntime

_LOG = logging.getLogger("tensorferry.serve")
_GPU = pb.ModelInstanceGroup.KIND_GPU
_MAX_INSTANCES = 64  # each is a thread, and a copy of what a runtime needs to run


def load_model(
    workshop: Workshop,
    folder: Path,
    version: int,
    config: Any,
    find: FindModel | None = None,
    *,
    is_sent: bool = False,
    stats: Stats | None = None,
    instance_of: SequencePolicy | None = None,
) -> Model:
    """The model in `folder / version`, warmed up; raises BadModel or MissingExtra.

    A Python model finds others through `find`; one whose files were sent by a client (`is_sent`) is refused. With
    `instance_of`, it is one instance of a model that has sequences.
    """
    backend, path = find_backend(config, folder / str(version))
    stats = stats or Stats()
    if config.HasField("sequence_batching"):
        policy = read_sequences(config, folder, is_python=backend == "python")

        def load_instance(plain: Any) -> Model:
            return load_model(workshop, folder, version, plain, find, is_sent=is_sent, stats=stats, instance_of=policy)

        return _load_sequence_model(folder, version, config, policy, load_instance, stats)
    groups = list(config.instance_group) or [pb.ModelInstanceGroup(count=1)]
    options = make_options(workshop, config, path, groups)
    if backend == "python":
        return load_python_model(workshop, folder, version, config, options, find, stats, is_sent=is_sent)
    if backend == "remote" and is_sent:
        raise BadModel(f"model '{config.name}' calls another service, which a model that a client sends may not")
    if config.model_transaction_policy.decoupled:
        raise BadModel(f"model '{config.name}' is decoupled (many answers to one request), which only a Python model can be")
    runtime = _open_runtime(backend, options)
    runners: list[Runner] = []
    spare: Runner | None = None
    try:
        complete = complete_config(config, backend, runtime.signature, workshop.default_max_batch_size)
        instances = _make_instances(workshop, runtime, groups, config.name, runners)
        if complete.max_batch_size and not config.max_batch_size:
            complete = _prove_batching(complete, config, backend, runtime, runners[0])
        spec = make_spec(complete, folder)
        for runner in runners:
            warm_up(complete, spec, runner, folder)
        queue_policy = read_policy(complete, workshop.default_max_queue)
        # outside of the instances' threads only what must be as quick as it was: sizes are fixed, nothing else is waited for;
        # and nothing with a state, which the runner may keep
        is_near = backend != "remote" and not isinstance(runtime, WorkerRuntime)
        is_plain = instance_of is None and is_near and not any(each.needs for each in instances)
        if is_plain and spec.has_fixed_sizes:
            spare = runtime.new_runner()
            runners.append(spare)
        scheduler = Scheduler(
            spec,
            queue_policy,
            instances,
            stats,
            limiter=workshop.limiter,
            deferred=workshop.deferred,
            name=f"{config.name}/{version}",
            spare=spare,
            rows=instance_of.rows if instance_of is not None else None,
        )
    except Exception:
        for runner in runners:
            runner.close()
        runtime.close()
        raise
    return RuntimeModel(version, complete, spec, runtime, scheduler, workshop.cache)


def _load_sequence_model(
    folder: Path, version: int, config: Any, policy: SequencePolicy, load_instance: Callable[[Any], Model], stats: Stats
) -> SequenceModel:
    """A model with state: every instance by itself, as sequences are bound to one."""
    if config.response_cache.enable:
        raise BadModel(f"model '{config.name}' keeps state, so its answers cannot come out of a cache")
    plain = without_sequences(config, policy)
    instances: list[Model] = []
    try:
        instances.extend(load_instance(plain) for _ in range(sum(_count(group) for group in config.instance_group) or 1))
        whole = with_sequences(instances[0].config, config, policy)
        return SequenceModel(version, whole, make_spec(whole, folder), policy, instances, stats)
    except Exception:
        for instance in instances:
            instance.close()
        raise


def make_options(workshop: Workshop, config: Any, path: Path, groups: list[Any]) -> LoadOptions:
    """How the file of a model with these instance groups is to be loaded."""
    num_instances = sum(_count(group) for group in groups)
    if num_instances > _MAX_INSTANCES:
        raise BadModel(f"model '{config.name}' asks for {num_instances:,} instances; at most {_MAX_INSTANCES} are made")
    devices = {(group.kind == _GPU, next(iter(group.gpus), 0)) for group in groups}
    if len(devices) > 1:
        raise BadModel(f"the instance groups of model '{config.name}' are on different devices; put them on one")
    on_gpu, device_id = devices.pop()
    return LoadOptions(
        path=path,
        num_threads=max(1, len(os.sched_getaffinity(0)) // num_instances),
        device="gpu" if on_gpu else "cpu",
        device_id=device_id,
        trust=workshop.trust,
        parameters=_read_parameters(config),
        input_names=tuple(tensor.name for tensor in config.input),
        output_names=tuple(tensor.name for tensor in config.output),
    )


def _read_parameters(config: Any) -> dict[str, str]:
    accelerators = [each.name for each in config.optimization.execution_accelerators.gpu_execution_accelerator]
    found = {key: value.string_value for key, value in config.parameters.items()}
    return found | ({"gpu_execution_accelerator": accelerators[0]} if accelerators else {})


def _open_runtime(backend: str, options: LoadOptions) -> Runtime:
    isolation = options.parameters.get("isolation", "process" if BACKENDS[backend].in_process else "thread")
    if isolation not in ("process", "thread"):
        raise BadModel(f"the parameter 'isolation' is {isolation!r}; expected 'process' or 'thread'")
    if isolation == "process":
        return WorkerRuntime(backend, options)
    try:
        return load_runtime(backend, options)
    except FerryError:
        raise
    except Exception as error:  # whatever a library throws at a damaged file, the others go on
        raise BadModel(f"cannot load {options.path}: {type(error).__name__}: {error}") from error


def _make_instances(workshop: Workshop, runtime: Runtime, groups: list[Any], name: str, runners: list[Runner]) -> list[Instance]:
    instances = []
    for group in groups:
        device = f"gpu{next(iter(group.gpus), 0)}" if group.kind == _GPU else "cpu"
        needs = read_needs(group, device)
        workshop.limiter.admit(needs, name)
        for _ in range(_count(group)):
            runners.append(runtime.new_runner())
            instances.append(Instance(runners[-1], needs, group.rate_limiter.priority))
    return instances


def _count(group: Any) -> int:
    return max(1, group.count)


def _prove_batching(complete: Any, config: Any, backend: str, runtime: Runtime, runner: Runner) -> Any:
    assert runtime.signature is not None
    wanted: Mapping[str, str] = {key: value.string_value for key, value in config.parameters.items()}
    if wanted.get("batching") == "trusted" or has_independent_rows(runner, runtime.signature):
        return complete
    _LOG.warning(
        "model '%s': two rows in one batch do not give what each gives alone, so it is served without a batch dimension; "
        "set max_batch_size to say otherwise",
        config.name,
    )
    return complete_config(config, backend, runtime.signature, default_max_batch_size=0)
