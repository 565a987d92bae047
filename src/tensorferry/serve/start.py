"""The way from the command line into the server: says what to install where the extra is missing."""

from collections.abc import Sequence
from pathlib import Path

from tensorferry.extras import missing_extra
from tensorferry.serve.options import BenchOptions, InventoryOptions, ServeOptions


def start(options: ServeOptions) -> int:
    """Serve until told to stop; the exit code."""
    try:
        from tensorferry.serve.server import serve
    except ModuleNotFoundError as error:
        raise missing_extra("ferry serve", error.name, "serve") from error
    return serve(options)


def start_pipeline(path: Path, options: Sequence[str], entry: Sequence[str]) -> int:
    """Serve the services of a pipeline until told to stop; the exit code."""
    try:
        from tensorferry.serve.pipelines.processes import serve_pipeline
    except ModuleNotFoundError as error:
        raise missing_extra("ferry serve", error.name, "serve") from error
    return serve_pipeline(path, options, entry)


def bench(options: BenchOptions) -> int:
    """Measure a server and print a line for every concurrency; the exit code is 1 where a request failed."""
    try:
        from tensorferry.serve.bench import TABLE_HEADER, LoadResult, Target, format_row, measure
    except ModuleNotFoundError as error:
        raise missing_extra("ferry bench-serve", error.name, "serve") from error
    target = Target(
        url=options.url if "://" in options.url else f"http://{options.url}",
        model=options.model,
        version=options.version,
        num_rows=options.num_rows,
        shapes=options.shapes,
        api_key=options.api_key,
        seconds=options.seconds,
        as_json=options.as_json,
    )
    results: list[LoadResult] = []

    def show(result: LoadResult) -> None:
        if not results:  # not before there is a row, so that an error stands alone
            print(TABLE_HEADER)
        results.append(result)
        print(format_row(result), flush=True)

    measure(target, list(options.concurrencies), show)
    return 1 if any(result.num_errors for result in results) else 0


def take_inventory(options: InventoryOptions) -> int:
    """List a repository, and check or prune it; the exit code is 1 where something is wrong with a model."""
    try:
        from tensorferry.serve.inventory_command import run
    except ModuleNotFoundError as error:
        raise missing_extra("ferry models", error.name, "serve") from error
    return run(options)
