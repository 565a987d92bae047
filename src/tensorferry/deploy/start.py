"""What the verbs of `ferry deploy` do and show."""

import json
import sys
from dataclasses import asdict

from tensorferry.deploy.options import (
    ChartOptions,
    CheckOptions,
    ExampleOptions,
    ImageOptions,
    JobOptions,
    KserveOptions,
    PipelineOptions,
)


def deploy_chart(options: ChartOptions) -> int:
    """Write a chart, and say what to do with it."""
    from tensorferry.deploy.chart import write_chart

    write_chart(options)
    print(f"saved: {options.to}; next: ferry deploy check {options.to}, then its README.md")
    return 0


def deploy_pipeline(options: PipelineOptions) -> int:
    """Write a chart for a pipeline, and say what to do with it."""
    from tensorferry.deploy.pipeline import write_pipeline_chart

    write_pipeline_chart(options)
    print(f"saved: {options.to}; next: ferry deploy check {options.to}, then its README.md")
    return 0


def deploy_image(options: ImageOptions) -> int:
    """Write a Containerfile, and say what to do with it."""
    from tensorferry.deploy.image import write_image

    write_image(options)
    if options.build is not None:
        print(f"saved: {options.to}; built: {options.build}")
        return 0
    print(f"saved: {options.to}; next: buildah build --timestamp 0 --tag NAME --file {options.to} .")
    return 0


def deploy_kserve(options: KserveOptions) -> int:
    """Write manifests for KServe, and say what to do with them."""
    from tensorferry.deploy.kserve import write_kserve

    write_kserve(options)
    where = options.storage or "the claim that the service names"
    print(f"saved: {options.to}; next: copy the models to {where}, then kubectl apply -f {options.to}")
    return 0


def deploy_training(options: JobOptions) -> int:
    """Write manifests for a training, and say what to do with them."""
    from tensorferry.deploy.training import write_training

    if note := write_training(options):
        print(note)
    print(f"saved: {options.to}; next: ferry deploy check {options.to}, then kubectl apply -f {options.to}")
    return 0


def deploy_example(options: ExampleOptions) -> int:
    """Write a complete pipeline to begin with, and say what to do with it."""
    from tensorferry.deploy.examples import find_example, write_example

    write_example(options)
    trust = " --trust" if find_example(options.name).needs_trust else ""
    print(f"saved: {options.to}; next: ferry serve {options.to / 'pipeline.yaml'}{trust}, then python {options.to / 'ask.py'}")
    return 0


def check_folder(options: CheckOptions) -> int:
    """Say what a cluster would refuse; the exit code is 1 where something is."""
    from tensorferry.deploy.check import check

    result = check(options)
    if options.as_json:
        print(json.dumps(asdict(result), indent=1))
        return 1 if result.findings else 0
    for finding in result.findings:
        print(finding)
    for note in result.not_checked:
        print(f"not checked: {note}", file=sys.stderr)
    num = len(result.findings)
    print(f"{result.num_objects} objects, {num} finding{'' if num == 1 else 's'}")
    return 1 if num else 0
