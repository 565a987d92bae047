"""A Helm chart for a folder of models: the files of `files/chart` as they are, and values from what is known of the models."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from tensorferry import __version__
from tensorferry.deploy.folder import check_target, write_folder
from tensorferry.deploy.measure import measure_repository
from tensorferry.deploy.names import check_name, split_image
from tensorferry.deploy.options import ChartOptions
from tensorferry.deploy.readme import write_readme
from tensorferry.deploy.repository import read_models
from tensorferry.deploy.sizing import choose_size
from tensorferry.errors import BadOption
from tensorferry.text import printable

CHART_VERSION = "0.1.0"
_PORT = 8000  # of REST, in every chart
_URL = re.compile(r"[a-z0-9]+://[^\s@/][^\s@]*")


@dataclass(frozen=True, kw_only=True)
class PipelineRole:
    """What a chart's service does in a pipeline; alone, nothing."""

    remotes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # service -> model -> its configuration here
    callers: tuple[str, ...] = ()  # who alone may ask it; none: everybody
    variables: Mapping[str, str] = field(default_factory=dict)  # where its services are while it is measured


def write_chart(options: ChartOptions) -> None:
    """Write the chart; raises BadOption or BadModel, with nothing written."""
    check_target(options.to)
    name = check_name(options.name or options.to.name, "a chart")
    write_folder(options.to, make_chart(options, name))


def make_chart(options: ChartOptions, name: str, role: PipelineRole = PipelineRole()) -> dict[str, str]:  # noqa: B008
    """The files of a chart; raises BadOption or BadModel."""
    image = split_image(options.image or f"localhost/{name}")
    source = read_source(options.models)
    models = read_models(options.repository)
    found = measure_repository(options.repository, options.trust, role.variables) if options.measures else None
    size = choose_size(models, found)
    values = fill(
        "values.yaml.j2",
        name=name,
        names=models.names,
        titles=[printable(each) for each in models.names],
        image=image,
        models=source | {"cache_size": size.cache_size},
        trust=options.trust,
        remotes=[{"service": each, "port": _PORT, "models": sorted(found)} for each, found in role.remotes.items()],
        callers=role.callers,
        replicas=options.replicas,
        gpus=options.gpus,
        cpu=size.cpu,
        memory=size.memory,
        max_memory=size.max_memory,
        startup_seconds=size.startup_seconds,
        measured=size.measured,
        notes=size.notes,
    )
    chart = fill(
        "Chart.yaml.j2",
        name=name,
        description=f"A TensorFerry server for {', '.join(map(printable, models.names))}",
        version=CHART_VERSION,
        app_version=__version__,
    )
    return {
        "Chart.yaml": chart,
        "values.yaml": values,
        "README.md": write_readme(name, models.names, values, source["source"]),
        **dict(_list_files(files("tensorferry.deploy") / "files" / "chart")),
        **{f"files/remotes/{model}.pbtxt": text for found in role.remotes.values() for model, text in found.items()},
    }


def read_source(text: str) -> dict[str, str]:
    """Where a cluster reads models, as the chart's values have it; raises BadOption."""
    source = {"source": "image", "path": "/models", "claim": "", "image": "", "url": ""}
    kind, _, rest = text.partition(":")
    if text == "image":
        return source
    if kind == "pvc" and rest and not rest.startswith("/"):
        return source | {"source": "pvc", "claim": check_name(rest, "a claim"), "path": "/"}
    if kind == "oci" and rest and not rest.startswith("/"):
        split_image(rest)
        return source | {"source": "oci", "image": rest}
    if _URL.fullmatch(text):
        return source | {"source": "url", "url": text}
    raise BadOption(
        f"models cannot come from {text!r}; write image, pvc:CLAIM, oci:IMAGE or an address such as s3://bucket/models"
    )


def fill(template: str, **values: Any) -> str:
    """A file of `files/` with its values filled in."""
    from jinja2 import Environment, StrictUndefined  # here, so that a program that writes no chart does not load it

    text = read_file(template)
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(text).render(values)


def read_file(name: str) -> str:
    """A file of `files/` as it is."""
    return (files("tensorferry.deploy") / "files" / name).read_text("utf-8")


def _list_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for each in sorted(folder.iterdir(), key=lambda found: found.name):
        if each.is_dir():
            yield from _list_files(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}", each.read_text("utf-8")
