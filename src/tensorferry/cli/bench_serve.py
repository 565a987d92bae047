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
        help="measure a prediction server",
        description="Measure a server of the Open Inference Protocol in a closed loop, at several concurrencies. "
        "Exit code 1: a request failed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="http://, https://, grpc:// or grpcs:// with host and port")
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument("--model-version", default="", metavar="N", help="default: the server's choice")
    parser.add_argument(
        "--concurrency", type=_numbers, default=BenchOptions.concurrencies, metavar="N,...", help="default 1,8,32"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=BenchOptions.seconds, metavar="S", help="for each; default %(default)g"
    )
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="rows of a request (default %(default)s)")
    parser.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="NAME:N,...", help="sizes that the model leaves open"
    )
    parser.add_argument("--json", action="store_true", help="send tensors as JSON instead of bytes (REST)")
    parser.add_argument("--api-key", default="", metavar="KEY")
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
