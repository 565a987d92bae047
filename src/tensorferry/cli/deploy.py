"""`ferry deploy`: files for Kubernetes, checked before they leave."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorferry.cli.numbers import count, positive, seconds
from tensorferry.cli.train import read_pair
from tensorferry.errors import BadOption

_EXAMPLES = """examples:
  ferry deploy models/ --to charts/reviews                                  a Helm chart: one server, its models, its limits
  ferry deploy models/ --to charts/reviews --models s3://bucket/models      the server reads the models from a bucket
  ferry deploy pipeline.yaml --to charts/assistant                          several services, each scaled by itself
  ferry deploy example reviews --to reviews/                                a complete pipeline to begin with; or brain, page
  ferry deploy image --models models/ --to Containerfile                    what the image is built from
  ferry deploy image --train --to Containerfile                             the same for trainings
  ferry deploy kserve models/ --storage s3://bucket/models --image registry.example.com/server:1 --to isvc/
  ferry deploy train bert-pretrain --nodes 32 --gpus 8 --image registry.example.com/train:1 --to job/
  ferry deploy check charts/reviews                                         what a cluster would refuse
"""


class _ChartUnlessNamed(argparse._SubParsersAction):
    """The first word is a verb of its own, or the folder of models that a chart is for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        words: Sequence[str] = values
        super().__call__(parser, namespace, words if words[0] in self._name_parser_map else ["chart", *words], option_string)


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "deploy",
        help="write what Kubernetes needs to serve a folder of models, and check it",
        description="Write a Helm chart for a folder of models (`ferry deploy FOLDER --to CHART`), or check one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds: Any = parser.add_subparsers(title="what", metavar="FOLDER | VERB", required=True, action=_ChartUnlessNamed)
    kinds.choices = None  # a folder is let through as well
    _add_chart(kinds.add_parser("chart", help="a Helm chart for a folder of models; the word may be left out"))
    _add_image(kinds.add_parser("image", help="a Containerfile for the server, with or without models"))
    _add_kserve(kinds.add_parser("kserve", help="a ServingRuntime and an InferenceService for KServe"))
    _add_train(kinds.add_parser("train", help="a training, for Kubeflow's Trainer, JobSet or a plain Job"))
    _add_example(kinds.add_parser("example", help="a complete pipeline to begin with: trained, optimised, ready to serve"))
    _add_keep(kinds.add_parser("keep", help="copy a run to a bucket as it grows, or bring it back; what pods of a training do"))
    _add_check(kinds.add_parser("check", help="say what a cluster would refuse of a chart or of manifests"))


def _add_chart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "repository", type=Path, metavar="FOLDER", help="a model repository: one folder per model; or pipeline.yaml"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="CHART", help="the new folder of the chart")
    parser.add_argument("--name", help="of the chart (default: that of its folder)")
    parser.add_argument("--image", help="of the server, as registry.example.com/team/name:tag (default: localhost/NAME)")
    parser.add_argument(
        "--models",
        default="image",
        metavar="WHERE",
        help="where the cluster reads the models: image (the server's), pvc:CLAIM, oci:IMAGE or s3://... (default %(default)s)",
    )
    _add_size(parser)
    parser.set_defaults(run=_run_chart)


def _add_kserve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repository", type=Path, metavar="FOLDER", help="a model repository: one folder per model")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the new folder of the manifests")
    parser.add_argument(
        "--storage", metavar="URL", help="where KServe gets that folder, as s3://bucket/models (default: pvc://NAME)"
    )
    parser.add_argument("--image", help="of the server, as registry.example.com/team/name:tag (default: localhost/NAME)")
    parser.add_argument("--name", help="of the service (default: that of the folder)")
    _add_size(parser)
    parser.set_defaults(run=_run_kserve)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=positive, metavar="N", help="pods (default 2)")
    parser.add_argument("--gpus", type=count, metavar="N", help="of a pod (default 0: the CPU only)")
    parser.add_argument("--trust", action="store_true", help="also load and serve files that may run code")
    parser.add_argument(
        "--no-measure", action="store_true", help="do not load the models; memory, cores and time to load are then guesses"
    )


def _add_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the new file, as Containerfile")
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="put this model repository into the image, and install what it needs alone"
    )
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="also install an extra, as sources; repeatable"
    )
    parser.add_argument("--train", action="store_true", help="an image for trainings: torch and the recipes, and no server")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of TensorFerry, below this folder (default: the release)")
    parser.add_argument("--base", metavar="IMAGE", help="with this version of Python (default: Python's own slim image)")
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="pin wheels by checksums, which pip asks its package index for; for this platform only",
    )
    parser.add_argument("--trust", action="store_true", help="serve files that may run code")
    parser.add_argument("--build", metavar="NAME", help="also build it, with buildah, podman or docker, as name:tag")
    parser.set_defaults(run=_run_image)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a name from `ferry recipes`, or package.module:Recipe of the image")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the new folder of the manifests")
    parser.add_argument("--image", help="with the recipe, as registry.example.com/team/name:tag (default: localhost/NAME)")
    parser.add_argument(
        "--kind",
        choices=("trainjob", "jobset", "job"),
        default="trainjob",
        help="trainjob: for Kubeflow's Trainer; jobset: for JobSet; job: no operator needed (default %(default)s)",
    )
    parser.add_argument("--name", help="of the training (default: that of the folder)")
    parser.add_argument("--nodes", type=positive, default=1, metavar="N", help="pods that train together (default %(default)s)")
    parser.add_argument("--gpus", type=positive, default=0, metavar="N", help="of a node, a process each (default: CPU only)")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes of a node without GPUs (default 1)")
    parser.add_argument("--cpus", metavar="N", help="that a node is to have (default: one for each process)")
    parser.add_argument("--memory", metavar="SIZE", help="that a node may take, as 16Gi (default: from the budget, or a guess)")
    parser.add_argument(
        "--checkpoints", metavar="WHERE", help="pvc:CLAIM, one that is there, or s3://bucket/runs (default: a claim is written)"
    )
    parser.add_argument("--size", default="50Gi", help="of that claim, or of a bucket's copy in the pod (default %(default)s)")
    parser.add_argument("--credentials", metavar="SECRET", help="whose keys are variables for the bucket, as AWS_ACCESS_KEY_ID")
    parser.add_argument("--service-account", metavar="NAME", help="of the pods, as one with a cloud's role")
    parser.add_argument("--queue", metavar="NAME", help="of Kueue, which lets the training begin")
    parser.add_argument(
        "--grace", type=positive, default=300, metavar="SECONDS", help="to finish a step and save (default %(default)s)"
    )
    parser.add_argument("--cluster-runtime", action="store_true", help="write a ClusterTrainingRuntime, for all namespaces")
    parser.add_argument("--runtime", metavar="NAME", help="a ClusterTrainingRuntime that is there, as torch-distributed")
    parser.add_argument("--from", dest="start", metavar="START", help="as of `ferry train`, like all that follow")
    parser.add_argument("--data", metavar="PATH", help="in the pod; the claim is at /runs")
    parser.add_argument("--steps", type=positive, metavar="N", help="how many steps to train")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the recipe; repeatable")
    parser.add_argument("--every", type=positive, metavar="N", help="evaluate and save every N steps")
    parser.add_argument("--seed", type=count, metavar="N", help="the same seed gives the same bits")
    parser.add_argument("--precision", metavar="NAME", help="fp32, bf16, fp16 or auto")
    parser.add_argument("--budget", metavar="BYTES", help="the most memory that a step of a process may hold")
    parser.add_argument("--parallel", metavar="WAYS", help="data, fsdp, or both as in data=2,fsdp=4")
    parser.set_defaults(run=_run_train)


def _add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("url", metavar="URL", help="its place in a bucket, as s3://bucket/runs/NAME")
    parser.add_argument("--restore", action="store_true", help="bring the run back, where there is one, and end")
    parser.set_defaults(run=_run_keep)


def _add_example(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="reviews: from a text to a label; brain: from an MRI to volumes; page: from a scan to text"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the new folder, with its pipeline.yaml")
    parser.add_argument("--steps", type=positive, metavar="N", help="how many steps to train (default: enough to be of use)")
    parser.add_argument(
        "--seconds", type=seconds, default=60.0, metavar="S", help="to find the fastest engine (default %(default)g)"
    )
    parser.set_defaults(run=_run_example)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a chart, or a folder of manifests")
    parser.add_argument(
        "--values", type=Path, action="append", default=[], metavar="FILE", help="values to render a chart with; repeatable"
    )
    parser.add_argument("--kubernetes", default="", metavar="VERSION", help="of the cluster, as 1.36 (default: the newest known)")
    parser.add_argument(
        "--crds",
        type=Path,
        metavar="FOLDER",
        help="definitions of custom resources (kubectl get crds -o yaml), to check those by",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_check)


def _run_chart(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import ChartOptions, PipelineOptions
    from tensorferry.deploy.start import deploy_chart, deploy_pipeline
    from tensorferry.serve.options import is_pipeline

    if is_pipeline(str(options.repository)):
        if (options.models, options.replicas, options.gpus) != ("image", None, None):
            raise BadOption("replicas and GPUs of a pipeline stand in its file, and models are in the images of its services")
        return deploy_pipeline(
            PipelineOptions(
                file=options.repository,
                to=options.to,
                name=options.name,
                image=options.image,
                trust=options.trust,
                measures=not options.no_measure,
            )
        )
    return deploy_chart(
        ChartOptions(
            repository=options.repository,
            to=options.to,
            name=options.name,
            image=options.image,
            models=options.models,
            replicas=options.replicas or 2,
            gpus=options.gpus or 0,
            trust=options.trust,
            measures=not options.no_measure,
        )
    )


def _run_kserve(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import KserveOptions
    from tensorferry.deploy.start import deploy_kserve

    return deploy_kserve(
        KserveOptions(
            repository=options.repository,
            to=options.to,
            storage=options.storage,
            name=options.name,
            image=options.image,
            replicas=options.replicas or 2,
            gpus=options.gpus or 0,
            trust=options.trust,
            measures=not options.no_measure,
        )
    )


def _run_image(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import ImageOptions
    from tensorferry.deploy.start import deploy_image

    return deploy_image(
        ImageOptions(
            to=options.to,
            models=options.models,
            wheel=options.wheel,
            base=options.base,
            extras=tuple(options.extra),
            is_for_training=options.train,
            has_digests=options.hashes,
            build=options.build,
            trust=options.trust,
        )
    )


def _run_train(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import JobOptions
    from tensorferry.deploy.start import deploy_training

    settings = tuple(read_pair(text) for text in options.set)
    if options.steps is not None:
        settings += (("steps", str(options.steps)),)
    for flag, value in (("--cluster-runtime", options.cluster_runtime), ("--runtime", options.runtime)):
        if value and options.kind != "trainjob":
            raise BadOption(f"{flag} is for a TrainJob; leave it out with --kind {options.kind}")
    if options.cluster_runtime and options.runtime:
        raise BadOption(f"--runtime {options.runtime} is there already; leave out --cluster-runtime, which writes one")
    same = ("recipe", "to", "image", "kind", "name", "nodes", "gpus", "workers", "cpus", "memory", "checkpoints", "size", "queue")
    place = ("credentials", "service_account", "runtime")
    trained = ("start", "data", "every", "seed", "precision", "budget", "parallel")
    return deploy_training(
        JobOptions(
            **{name: getattr(options, name) for name in (*same, *place, *trained)},
            grace_seconds=options.grace,
            is_cluster_wide=options.cluster_runtime,
            settings=settings,
        )
    )


def _run_keep(options: argparse.Namespace) -> int:
    from tensorferry.deploy.bucket_run import keep_run, restore_run

    if options.restore:
        restore_run(options.url, options.folder)
    else:
        keep_run(options.folder, options.url)
    return 0


def _run_example(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import ExampleOptions
    from tensorferry.deploy.start import deploy_example

    return deploy_example(ExampleOptions(name=options.name, to=options.to, steps=options.steps, seconds=options.seconds))


def _run_check(options: argparse.Namespace) -> int:
    from tensorferry.deploy.options import CheckOptions
    from tensorferry.deploy.start import check_folder

    return check_folder(
        CheckOptions(
            folder=options.folder,
            values=tuple(options.values),
            kubernetes=options.kubernetes,
            definitions=options.crds,
            as_json=options.json,
        )
    )
