"""`ferry deploy`: files for Kubernetes, checked before they leave."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorferry.cli.numbers import count, positive

_EXAMPLES = """examples:
  ferry deploy models/ --to charts/reviews                                  a Helm chart: one server, its models, its limits
  ferry deploy models/ --to charts/reviews --models s3://bucket/models      the server reads the models from a bucket
  ferry deploy image --models models/ --to Containerfile                    what the image is built from
  ferry deploy kserve models/ --storage s3://bucket/models --image registry.example.com/server:1 --to isvc/
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
    _add_check(kinds.add_parser("check", help="say what a cluster would refuse of a chart or of manifests"))


def _add_chart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repository", type=Path, metavar="FOLDER", help="a model repository: one folder per model")
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
    parser.add_argument("--storage", required=True, metavar="URL", help="where KServe gets that folder, as s3://bucket/models")
    parser.add_argument("--image", required=True, help="of the server, as registry.example.com/team/name:tag")
    parser.add_argument("--name", help="of the service (default: that of the folder)")
    _add_size(parser)
    parser.set_defaults(run=_run_kserve)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=positive, default=2, metavar="N", help="pods (default %(default)s)")
    parser.add_argument("--gpus", type=count, default=0, metavar="N", help="of a pod (default %(default)s: the CPU only)")
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
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of TensorFerry, below this folder (default: the release)")
    parser.add_argument("--base", metavar="IMAGE", help="with this version of Python (default: Python's own slim image)")
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="pin wheels by checksums, which pip asks its package index for; for this platform only",
    )
    parser.add_argument("--trust", action="store_true", help="serve files that may run code")
    parser.set_defaults(run=_run_image)


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
    from tensorferry.deploy.options import ChartOptions
    from tensorferry.deploy.start import deploy_chart

    return deploy_chart(
        ChartOptions(
            repository=options.repository,
            to=options.to,
            name=options.name,
            image=options.image,
            models=options.models,
            replicas=options.replicas,
            gpus=options.gpus,
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
            replicas=options.replicas,
            gpus=options.gpus,
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
            has_digests=options.hashes,
            trust=options.trust,
        )
    )


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
