"""A pipeline as one Helm chart: a chart for each service inside it, and what they need to call each other.

The services are started here once, as `ferry serve pipeline.yaml` does: that tells what each model takes and gives, which its
callers have to know before it is there, and what each service needs.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorferry import __version__
from tensorferry.deploy.chart import CHART_VERSION, PipelineRole, fill, make_chart, read_file
from tensorferry.deploy.folder import check_target, write_folder
from tensorferry.deploy.names import check_name, split_image
from tensorferry.deploy.options import ChartOptions, PipelineOptions
from tensorferry.errors import BadOption
from tensorferry.extras import missing_extra
from tensorferry.text import printable

if TYPE_CHECKING:
    from tensorferry.serve.pipelines.definition import Pipeline
    from tensorferry.serve.pipelines.processes import StartedService


def write_pipeline_chart(options: PipelineOptions) -> None:
    """Write the chart; raises BadOption or BadModel, with nothing written."""
    try:
        from tensorferry.serve.pipelines.definition import read_pipeline
        from tensorferry.serve.pipelines.processes import start_services
    except ModuleNotFoundError as error:
        raise missing_extra("ferry deploy", error.name, "serve") from error
    check_target(options.to)
    name = check_name(options.name or options.to.name, "a chart")
    pipeline = read_pipeline(options.file)
    if any(each.name == name for each in pipeline.services):
        raise BadOption(f"the chart and one of its services are both called {name!r}; say --name {name}-pipeline")
    image = split_image(options.image or f"localhost/{name}")
    if image["digest"]:
        raise BadOption("every service has an image of its own, so one digest cannot be theirs; leave it out of --image")
    files: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    with start_services(pipeline, ["--trust"] if options.trust else []) as services:
        for started in services:
            row = _describe(started, image, options.file.parent)
            chart = _make_service_chart(options, row, started, pipeline)
            files |= {f"charts/{row['name']}/{file}": text for file, text in chart.items()}
            rows.append(row)
    shared = {"name": name, "entry": pipeline.entry, "services": rows, "version": CHART_VERSION, "app_version": __version__}
    files["Chart.yaml"] = fill("pipeline/Chart.yaml.j2", **shared)
    files["values.yaml"] = fill("pipeline/values.yaml.j2", **shared)
    files["values.schema.json"] = _write_schema([row["name"] for row in rows])
    files["templates/NOTES.txt"] = fill("pipeline/NOTES.txt.j2", **shared)
    files["templates/check.yaml"] = read_file("pipeline/check.yaml")
    files["README.md"] = fill("pipeline/README.md.j2", **shared)
    write_folder(options.to, files)


def _write_schema(services: list[str]) -> str:
    """What may stand in the values: one for a service that is not there would do nothing. Services have schemas of their own."""
    known = {name: {"type": "object"} for name in [*services, "global"]}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of a pipeline that ferry deploy wrote",
        "type": "object",
        "additionalProperties": False,
        "required": services,
        "properties": known,
    }
    return json.dumps(schema, indent=1) + "\n"


def _describe(started: "StartedService", image: dict[str, str], root: Path) -> dict[str, Any]:
    service = started.service
    return {
        "name": service.name,
        "models": [printable(each) for each in started.own_models],
        "calls": service.calls,
        "folder": printable(os.path.relpath(service.folder, root)),
        "image": image | {"repository": f"{image['repository']}-{service.name}"},
        "replicas": service.replicas,
        "gpus": service.gpus,
    }


def _make_service_chart(
    options: PipelineOptions, row: dict[str, Any], started: "StartedService", pipeline: "Pipeline"
) -> dict[str, str]:
    role = PipelineRole(
        remotes={
            callee: {model: files["config.pbtxt"] for model, files in found.items()} for callee, found in started.remotes.items()
        },
        callers=tuple(each.name for each in pipeline.services if row["name"] in each.calls),
        variables=started.variables,
    )
    chart = ChartOptions(
        repository=started.folder,
        to=options.to,
        image=":".join(filter(None, (row["image"]["repository"], row["image"]["tag"]))),
        replicas=row["replicas"],
        gpus=row["gpus"],
        trust=options.trust,
        measures=options.measures,
    )
    return make_chart(chart, row["name"], role)
