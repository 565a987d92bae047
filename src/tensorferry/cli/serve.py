"""`ferry serve`: a folder of models answers the Open Inference Protocol."""

import argparse
from pathlib import Path

from tensorferry.cli.numbers import count, positive, seconds
from tensorferry.errors import BadOption
from tensorferry.serve.options import CONTROL_MODES, ServeOptions, is_pipeline
from tensorferry.units import parse_bytes

_EXAMPLES = """examples:
  ferry serve models/                                        REST on 8000, gRPC on 8001, for this machine only
  ferry serve models/ --host 0.0.0.0 --api-keys keys.txt     for other machines too, with keys
  ferry serve models/ --model-control-mode poll              load and unload as the folder changes
  ferry serve models/ --model-control-mode explicit --load-model resnet
  ferry serve s3://bucket/models --model-control-mode poll   models of an object store, followed by etag
  ferry serve pipeline.yaml                                  several services that call each other, a process each
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "serve",
        help="serve a folder of models over REST and gRPC",
        description="Serve a folder of models (Triton's layout) over the Open Inference Protocol, until SIGTERM or Ctrl-C.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "repository",
        metavar="FOLDER",
        help="a model repository: one folder per model; or its address, such as s3://bucket/models or oci://registry/models:1.0",
    )
    _add_network(parser)
    _add_models(parser)
    _add_limits(parser)
    parser.add_argument("--otlp", metavar="URL", help="send OpenTelemetry traces to a collector, such as http://localhost:4318")
    parser.add_argument("--log-json", action="store_true", help="log one JSON object per line instead of text")
    parser.add_argument("--log-verbose", type=count, default=0, metavar="N", help="above 0: log every inference")
    parser.set_defaults(run=_run)


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--host", default=ServeOptions.host, help="address to listen on (default %(default)s: this machine only)")
    group.add_argument(
        "--http-port",
        type=_port,
        default=ServeOptions.http_port,
        metavar="PORT",
        help="for REST (default %(default)s; 0: any free one)",
    )
    group.add_argument(
        "--grpc-port",
        type=_port,
        default=ServeOptions.grpc_port,
        metavar="PORT",
        help="for gRPC (default %(default)s; 0: any free one)",
    )
    group.add_argument("--no-http", action="store_true", help="turn REST, metrics and the status page off")
    group.add_argument("--no-grpc", action="store_true", help="turn gRPC off")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM; encrypts REST and gRPC")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    group.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="require a client certificate from this authority")
    group.add_argument(
        "--shared-memory",
        metavar="PREFIX",
        help="let local clients register shared memory whose name starts with PREFIX (default: off)",
    )
    group.add_argument(
        "--allowed-hosts",
        type=_names,
        metavar="NAME,...",
        help="names that clients may call the server by; '*': any (default: loopback names on a loopback address, any elsewhere)",
    )
    group.add_argument("--api-keys", type=Path, metavar="FILE", help="one key per line; read again when it changes")
    group.add_argument("--admin-keys", type=Path, metavar="FILE", help="keys of their own for control calls and metrics")
    group.add_argument(
        "--admin-port", type=_port, metavar="PORT", help="a port of their own for control calls, metrics and the status page"
    )
    group.add_argument("--admin-host", help="address of the admin port (default: that of --host)")


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--model-control-mode",
        choices=CONTROL_MODES,
        default=ServeOptions.control_mode,
        help="none loads all models once, poll follows the folder, explicit waits for requests (default %(default)s)",
    )
    group.add_argument(
        "--load-model", action="append", metavar="NAME", help="a model to load at the start, in explicit mode; repeatable"
    )
    group.add_argument(
        "--repository-poll-secs",
        type=seconds,
        default=ServeOptions.poll_seconds,
        metavar="S",
        help="how often poll looks (default %(default)g)",
    )
    group.add_argument(
        "--trust", action="store_true", help="also load files that may run code or reach other files, such as TorchScript"
    )
    group.add_argument(
        "--default-max-batch-size",
        type=count,
        default=ServeOptions.default_max_batch_size,
        metavar="N",
        help="for models without a config.pbtxt (default %(default)s)",
    )
    group.add_argument(
        "--model-load-thread-count",
        type=positive,
        default=ServeOptions.num_load_threads,
        metavar="N",
        help="models to load at the same time (default %(default)s)",
    )
    group.add_argument(
        "--source-cache",
        type=Path,
        metavar="FOLDER",
        help="where models of an address such as s3://bucket/models are kept (default: in the user's cache folder)",
    )
    group.add_argument("--source-size", default="64GiB", metavar="BYTES", help="how much of them to take (default %(default)s)")
    group.add_argument("--cache-size", metavar="BYTES", help='size of the response cache, such as "256MiB" (default: no cache)')
    group.add_argument(
        "--rate-limit-resource",
        type=_resource,
        action="append",
        default=[],
        metavar="NAME:COUNT",
        help="how much there is of a resource that models share; repeatable",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--max-body", default="64MiB", metavar="BYTES", help="the largest request (default %(default)s)")
    group.add_argument(
        "--max-memory",
        metavar="BYTES",
        help="for everything that clients make the server hold: requests, queues, unread answers (default: a quarter of RAM)",
    )
    group.add_argument(
        "--max-connections",
        type=positive,
        default=ServeOptions.max_connections,
        metavar="N",
        help="open connections per protocol (default %(default)s)",
    )
    group.add_argument(
        "--max-requests", type=count, default=0, metavar="N", help="inferences at the same time (default: no limit)"
    )
    group.add_argument(
        "--max-queue", type=count, default=0, metavar="N", help="requests that may wait for one model (default: no limit)"
    )
    group.add_argument(
        "--read-timeout",
        type=seconds,
        default=ServeOptions.read_seconds,
        metavar="S",
        help="to receive a whole request (default %(default)g)",
    )
    group.add_argument(
        "--exit-timeout-secs",
        type=seconds,
        default=ServeOptions.drain_seconds,
        metavar="S",
        help="to finish open requests when stopping (default %(default)g)",
    )


def _run(options: argparse.Namespace) -> int:
    from tensorferry.machine import memory_nbytes
    from tensorferry.serve.sources.source import is_url
    from tensorferry.serve.start import start

    if is_pipeline(options.repository):
        return _run_pipeline(options)
    if options.no_http and options.no_grpc:
        raise BadOption("with --no-http and --no-grpc nothing would be served; leave one of them out")
    if options.admin_host is not None and options.admin_port is None:
        raise BadOption("--admin-host needs --admin-port")
    if options.load_model is not None and options.model_control_mode != "explicit":
        raise BadOption("--load-model needs --model-control-mode explicit; every other mode loads all models")
    return start(
        ServeOptions(
            repository=options.repository if is_url(options.repository) else Path(options.repository),
            source_cache=options.source_cache,
            source_nbytes=parse_bytes(options.source_size),
            host=options.host,
            http_port=None if options.no_http else options.http_port,
            grpc_port=None if options.no_grpc else options.grpc_port,
            control_mode=options.model_control_mode,
            load_models=None if options.load_model is None else tuple(options.load_model),
            poll_seconds=options.repository_poll_secs,
            trust=options.trust,
            default_max_batch_size=options.default_max_batch_size,
            num_load_threads=options.model_load_thread_count,
            cache_nbytes=0 if options.cache_size is None else parse_bytes(options.cache_size),
            rate_limits=dict(options.rate_limit_resource),
            max_body_nbytes=parse_bytes(options.max_body),
            max_memory_nbytes=memory_nbytes() // 4 if options.max_memory is None else parse_bytes(options.max_memory),
            shared_memory=options.shared_memory,
            max_connections=options.max_connections,
            max_under_way=options.max_requests,
            max_queue=options.max_queue,
            read_seconds=options.read_timeout,
            drain_seconds=options.exit_timeout_secs,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            tls_client_ca=options.tls_client_ca,
            allowed_hosts=options.allowed_hosts,
            api_keys=options.api_keys,
            admin_keys=options.admin_keys,
            admin_host=options.admin_host,
            admin_port=options.admin_port,
            otlp=options.otlp,
            log_json=options.log_json,
            log_verbose=options.log_verbose,
        )
    )


def _run_pipeline(options: argparse.Namespace) -> int:
    """The service that clients ask takes all options, the others those that are no addresses, keys or ports."""
    from tensorferry.serve.start import start_pipeline

    if options.no_http:
        raise BadOption("the services of a pipeline are asked over HTTP; leave out --no-http")
    words = list(options.command[1:])
    del words[words.index(options.repository)]
    words.remove("serve")
    inner = [f"--exit-timeout-secs={options.exit_timeout_secs:g}", f"--max-body={options.max_body}"]
    inner += ["--trust"] * options.trust + ["--log-json"] * options.log_json
    return start_pipeline(Path(options.repository), inner, words)


def _port(text: str) -> int:
    if count(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port up to 65535, received {text!r}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, received {text!r}")
    return names


def _resource(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"expected NAME:COUNT, received {text!r}")
    return name, positive(number)
