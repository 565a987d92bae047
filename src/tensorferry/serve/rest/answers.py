"""What answers each address of REST but inference: a translation to the data plane, and its result as plain values."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.describe import describe_config, describe_model, describe_statistics
from tensorferry.serve.core.faults import InvalidRequest, Unsupported
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.repository import VersionState
from tensorferry.serve.rest.exchange import HttpRequest
from tensorferry.serve.rest.json_body import read_json, read_load

Names = Mapping[str, str]  # those in the address: model, version, region
Reply = tuple[int, Any]  # status, and what is sent as JSON (None: an empty body)

# ---- the server ------------------------------------------------------------------------------------------------------


def describe_server(plane: DataPlane, _: HttpRequest, __: Charge, ___: Names) -> Reply:
    """Who answers."""
    metadata = plane.metadata
    return 200, {"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)}


def tell_live(_: DataPlane, __: HttpRequest, ___: Charge, ____: Names) -> Reply:
    """That the server answers."""
    return 200, {"live": True}


def tell_ready(plane: DataPlane, _: HttpRequest, __: Charge, ___: Names) -> Reply:
    """Whether it takes inferences."""
    return (200 if plane.is_ready else 503), {"ready": plane.is_ready}


# ---- models ----------------------------------------------------------------------------------------------------------


def describe_all_statistics(plane: DataPlane, _: HttpRequest, __: Charge, ___: Names) -> Reply:
    """What all models have done."""
    return 200, {"model_stats": [describe_statistics(model) for model in plane.find_for_statistics("", "")]}


def describe_one(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """What a model takes and gives."""
    model = plane.find(names["model"], names.get("version", ""))
    return 200, describe_model(model, plane.repository.versions_of(names["model"]))


def tell_model_ready(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """Whether a model takes inferences."""
    name = names["model"]
    if plane.is_model_ready(name, names.get("version", "")):
        return 200, {"name": name, "ready": True}
    return 400, {"error": f"model '{name}' is not ready"}


def describe_one_config(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """A model's configuration."""
    return 200, describe_config(plane.find(names["model"], names.get("version", "")).config)


def describe_one_statistics(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """What a model has done."""
    models = plane.find_for_statistics(names["model"], names.get("version", ""))
    return 200, {"model_stats": [describe_statistics(model) for model in models]}


# ---- the repository --------------------------------------------------------------------------------------------------


def list_models(plane: DataPlane, request: HttpRequest, _: Charge, __: Names) -> Reply:
    """The repository's index."""
    ready_only = read_json(request.body).get("ready", False)
    if not isinstance(ready_only, bool):
        raise InvalidRequest(f"'ready' takes true or false, received {str(ready_only)[:40]!r}")
    return 200, [_without_empty(line) for line in plane.index(ready_only)]


async def load(plane: DataPlane, request: HttpRequest, charge: Charge, names: Names) -> Reply:
    """Load a model, with the configuration and the files that come with the request."""
    config, files = await asyncio.to_thread(lambda: read_load(request.take_body(), charge))
    await plane.load(names["model"], config, files)
    return 200, None


async def unload(plane: DataPlane, request: HttpRequest, _: Charge, names: Names) -> Reply:
    """Take a model out of service."""
    parameters = read_json(request.body).get("parameters", {})
    if not isinstance(parameters, dict) or not isinstance(parameters.get("unload_dependents", False), bool):
        raise InvalidRequest("the parameters of an unload are an object; 'unload_dependents' in it takes true or false")
    await plane.unload(names["model"], parameters.get("unload_dependents", False))
    return 200, None


def _without_empty(line: VersionState) -> dict[str, str]:
    found = {"name": line.name, "version": line.version, "state": str(line.state), "reason": line.reason}
    return {key: value for key, value in found.items() if value or key == "name"}


# ---- settings --------------------------------------------------------------------------------------------------------


def read_log(plane: DataPlane, _: HttpRequest, __: Charge, ___: Names) -> Reply:
    """The log settings."""
    return 200, dict(plane.settings.log)


def update_log(plane: DataPlane, request: HttpRequest, _: Charge, __: Names) -> Reply:
    """Change them."""
    return 200, plane.settings.update_log(read_json(request.body))


def read_trace(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """The trace settings of a model, or of all."""
    return 200, _describe_trace(plane.settings.read_trace(_find_traced(plane, names)))


def update_trace(plane: DataPlane, request: HttpRequest, _: Charge, names: Names) -> Reply:
    """Change them."""
    name = _find_traced(plane, names)
    return 200, _describe_trace(plane.settings.update_trace(name, read_json(request.body)))


def _find_traced(plane: DataPlane, names: Names) -> str:
    return plane.find(names["model"], "").name if "model" in names else ""


def _describe_trace(found: Mapping[str, list[str]]) -> dict[str, Any]:
    return {key: values if key == "trace_level" else values[0] for key, values in found.items()}


# ---- shared memory ---------------------------------------------------------------------------------------------------


def list_regions(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """The regions that are registered, or one of them."""
    regions = plane.regions.status(names.get("region", ""))
    return 200, [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.nbytes} for r in regions]


def register_region(plane: DataPlane, request: HttpRequest, _: Charge, names: Names) -> Reply:
    """Register a region."""
    found = read_json(request.body)
    key, offset, nbytes = found.get("key"), found.get("offset", 0), found.get("byte_size")
    if not isinstance(key, str) or type(offset) is not int or type(nbytes) is not int:
        raise InvalidRequest("a region needs a 'key' as text, a 'byte_size' and maybe an 'offset' as whole numbers")
    plane.regions.register(names["region"], key, offset, nbytes)
    return 200, None


def unregister_region(plane: DataPlane, _: HttpRequest, __: Charge, names: Names) -> Reply:
    """Forget a region, or all."""
    plane.regions.unregister(names.get("region", ""))
    return 200, None


def no_regions(_: DataPlane, __: HttpRequest, ___: Charge, ____: Names) -> Reply:
    """There is no CUDA shared memory."""
    return 200, []


def forget_nothing(_: DataPlane, __: HttpRequest, ___: Charge, ____: Names) -> Reply:
    """Clients unregister all regions before they begin."""
    return 200, None


def refuse_cuda(_: DataPlane, __: HttpRequest, ___: Charge, ____: Names) -> Reply:
    """CUDA shared memory cannot be registered."""
    raise Unsupported("this server has no CUDA shared memory; register system shared memory instead")
