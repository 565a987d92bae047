"""`pipeline.yaml`: which services there are, which models each has, who calls whom, and where a request enters.

```yaml
name: assistant
entry: text                # the service that clients ask
services:
  text:
    models: text/          # a folder of models, from where this file is
    calls: [encoder]       # their models can be steps of its ensembles, and be called by its Python models
  encoder:
    models: encoder/
    replicas: 4            # in a cluster
    gpus: 1
```
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorferry.errors import BadModel, BadOption
from tensorferry.messages import did_you_mean, first_line
from tensorferry.serve.core.config import is_ensemble, read_config
from tensorferry.serve.core.ensemble import read_steps
from tensorferry.serve.core.folder import list_models

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*")  # as keys and paths of a cluster allow
_MAX_NBYTES = 2**20
_MAX_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class PipelineService:
    """One server of a pipeline."""

    name: str
    folder: Path
    calls: tuple[str, ...] = ()
    replicas: int = 2
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole one; each service stands after those that it calls."""

    name: str
    entry: str
    services: tuple[PipelineService, ...]


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline of a file; raises BadOption or BadModel for one that could never answer."""
    described = _read(path)
    _check_keys(described, ("name", "entry", "services"), str(path))
    name = _check_name(described.get("name", path.resolve().parent.name), "a pipeline")
    listed = described.get("services")
    if not isinstance(listed, dict) or not listed:
        raise BadOption(f"{str(path)!r} has no services; name them with their folders of models under `services:`")
    services = {str(key): _read_service(str(key), value, path.parent) for key, value in listed.items()}
    entry = described.get("entry")
    if entry not in services:
        known = ", ".join(services)
        raise BadOption(f"a request cannot enter at {entry!r}{did_you_mean(str(entry), services)}; the services are {known}")
    for service in services.values():
        unknown = next((each for each in service.calls if each not in services), None)
        if unknown is not None:
            hint = did_you_mean(unknown, services)
            raise BadOption(f"service '{service.name}' calls '{unknown}', which is no service of the pipeline{hint}")
    ordered = tuple(services[each] for each in _order(entry, services))
    unused = sorted(services.keys() - {each.name for each in ordered})
    if unused:
        raise BadOption(f"nobody calls the service '{unused[0]}'; leave it out, or name it under `calls:` of another")
    pipeline = Pipeline(name, str(entry), ordered)
    for service in ordered:
        _check_models(service, services)
    return pipeline


def models_of(service: PipelineService) -> set[str]:
    """The names of its own models."""
    if not service.folder.is_dir():
        raise BadModel(f"service '{service.name}' has no folder {str(service.folder)!r} of models")
    names = list_models(service.folder)
    if not names:
        raise BadModel(
            f"service '{service.name}' has no models in {str(service.folder)!r}; expected NAME/1/model.onnx and the like"
        )
    return names


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_NBYTES:
            raise ValueError(f"it is larger than {_MAX_NBYTES >> 20} MiB")
        found = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise BadOption(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise BadOption(f"{str(path)!r} is no pipeline: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise BadOption(f"{str(path)!r} is no pipeline: expected name, entry and services")
    return found


def _read_service(name: str, described: Any, root: Path) -> PipelineService:
    _check_name(name, "a service")
    if not isinstance(described, dict) or not isinstance(described.get("models"), str):
        raise BadOption(f"service '{name}' has no models; name their folder, as `models: {name}/`")
    _check_keys(described, ("models", "calls", "replicas", "gpus"), f"service '{name}'")
    calls = described.get("calls") or []
    if not isinstance(calls, list) or not all(isinstance(each, str) for each in calls) or len(set(calls)) < len(calls):
        raise BadOption(f"service '{name}': expected `calls:` to be a list of services, each once")
    counts = {}
    for key, least, default in (("replicas", 1, 2), ("gpus", 0, 0)):
        value = described.get(key, default)
        if type(value) is not int or not least <= value <= _MAX_COUNT:
            raise BadOption(f"service '{name}': expected `{key}:` to be a whole number from {least} up, received {value!r}")
        counts[key] = value
    return PipelineService(name, root / described["models"], tuple(calls), **counts)


def _check_name(name: Any, what: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    fit = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-0123456789")[:40].strip("-") or "assistant"
    raise BadOption(
        f"{what} cannot be called {name!r}: DNS allows small letters, digits and hyphens, at most 40, a letter first; as {fit}"
    )


def _check_keys(described: dict[Any, Any], known: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in described if key not in known), None)
    if unknown is not None:
        raise BadOption(
            f"{where} says {unknown!r}, which means nothing{did_you_mean(str(unknown), known)}; known: {', '.join(known)}"
        )


def _order(entry: str, services: dict[str, PipelineService]) -> list[str]:
    """The services that a request can reach, each after those that it calls."""
    found: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise BadOption(f"services call each other in a circle: {circle}")
        if name in found:
            return
        path.append(name)
        for each in services[name].calls:
            visit(each)
        path.pop()
        found.append(name)

    visit(entry)
    return found


def _check_models(service: PipelineService, services: dict[str, PipelineService]) -> None:
    """Refuse names that two services have, and ensembles with a step or a tensor that nobody makes."""
    owners = dict.fromkeys(models_of(service), service.name)
    for callee in service.calls:
        for name in sorted(models_of(services[callee])):
            if not _MODEL_NAME.fullmatch(name):
                raise BadModel(
                    f"the model {name!r} of service '{callee}' cannot be called: letters, digits, '-', '_' and '.' only"
                )
            if name in owners:
                raise BadModel(
                    f"service '{service.name}' has two models '{name}', of '{owners[name]}' and of '{callee}'; rename one"
                )
            owners[name] = callee
    for name in sorted(models_of(service)):
        config = read_config(service.folder / name)
        if is_ensemble(config):
            _check_ensemble(service, config, owners.keys())


def _check_ensemble(service: PipelineService, config: Any, known: Iterable[str]) -> None:
    where = f"ensemble '{config.name}' of service '{service.name}'"
    waiting = read_steps(config)
    for step in waiting:
        if step.model_name not in known:
            hint = did_you_mean(step.model_name, known)
            raise BadModel(f"{where}: no model '{step.model_name}' is here or in a service that it calls{hint}")
    made = {tensor.name for tensor in config.input}
    while ready := [step for step in waiting if made >= set(step.inputs.values())]:
        made |= {ours for step in ready for ours in step.outputs.values()}
        waiting = [step for step in waiting if step not in ready]
    missing = sorted(_missing(config, waiting, made))
    if missing:
        raise BadModel(f"{where}: nobody makes the tensor '{missing[0]}'")


def _missing(config: Any, waiting: list[Any], made: set[str]) -> Iterator[str]:
    promised = {ours for step in waiting for ours in step.outputs.values()}
    wanted = {ours for step in waiting for ours in step.inputs.values()}
    yield from wanted - made - promised or wanted - made
    yield from {tensor.name for tensor in config.output} - made - promised
