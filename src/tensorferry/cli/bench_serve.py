"""`ferry bench-serve`: throughput and latency of any server of the Open Inference Protocol."""

import argparse

from tensorferry.cli.numbers import positive, seconds
from tensorferry.serve.options import BenchOptions

_EXAMPLES = """examples:
  ferry bench-serve http://localhost:8000 resnet
  ferry bench-serve grpc://localhost:8001 resnet --concurrency 1,4,16 --seconds 10
  ferry bench-serve http://localhost:8000 bert --shape input_ids:128 --shape attention_mask:128
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "bench-serve",
        help="measure the throughput and latency of a prediction server",
        description="Measure throughput and latency of a server of the Open Inference Protocol, at several concurrencies.\n"
        "Each client sends its next request when it has the answer to the last. The exit code is 1 if a request failed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="http://, https://, grpc:// or grpcs:// with host and port")
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument("--model-version", default="", metavar="N", help="which version to ask (default: the server's choice)")
    parser.add_argument(
        "--concurrency",
        type=_numbers,
        default=BenchOptions.concurrencies,
        metavar="N,...",
        help="clients at the same time (default 1,8,32)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=BenchOptions.seconds,
        metavar="S",
        help="how long to measure each concurrency (default %(default)g)",
    )
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="rows per request (default %(default)s)")
    parser.add_argument(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="NAME:N,...",
        help="sizes for dimensions that the model leaves open",
    )
    parser.add_argument("--json", action="store_true", help="send tensors as JSON instead of binary (REST)")
    parser.add_argument("--api-key", default="", metavar="KEY", help="sent with every request")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.serve.start import bench

    return bench(
        BenchOptions(
            url=options.url,
            model=options.model,
            version=options.model_version,
            concurrencies=options.concurrency,
            seconds=options.seconds,
            num_rows=options.batch,
            shapes=dict(options.shape),
            api_key=options.api_key,
            as_json=options.json,
        )
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"expected NAME:SIZE,..., received {text!r}")
    return name, _numbers(sizes)
