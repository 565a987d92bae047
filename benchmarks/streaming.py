"""A network learns from a set on disk of ten times its memory budget.

    python benchmarks/streaming.py                      1.25 GiB of rows, 128 MiB of budget
    python benchmarks/streaming.py --budget 64MiB --save
    python benchmarks/streaming.py --no-times           without the wait: where other work runs on the machine

Rows are written to a folder that goes afterwards. The peak is the rise of the process's resident memory over what it was before
the estimator was made; a small fit before that has loaded the framework. Input wait is the share of the fit in which a batch was
asked for and not ready.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from results import FigureTable, parse_options, save_result
from tensorferry import datasets, estimators
from tensorferry.engines.resident import ResidentMeter
from tensorferry.units import format_bytes, parse_bytes

NUM_COLUMNS, BLOCK_ROWS, NUM_BLOCKS = 40, 8000, 8
PACKAGES = ("keras", "tensorflow-cpu", "torch", "pyarrow", "numpy")


def main(argv: list[str] | None = None) -> int:
    """Write rows, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="128MiB", help="of the training")
    parser.add_argument("--times", type=int, default=10, help="how many times larger the set is")
    parser.add_argument("--no-times", action="store_true", help="leave out the wait, which says nothing on a busy machine")
    options = parse_options(parser, __file__, argv)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "rows.parquet", parse_bytes(options.budget), options.times)
    cells = {
        "set": format_bytes(found["set_nbytes"]),
        "rows": f"{found['num_rows']:,}",
        "peak": format_bytes(found["peak_nbytes"]),
        "of the budget": f"{found['peak_nbytes'] / parse_bytes(options.budget):.0%}",
        "r2 on other rows": f"{found['r2']:.3f}",
    }
    wait_share = found.pop("wait_share")
    if not options.no_times:
        cells["input wait"] = f"{wait_share:.1%}"
        found["wait_share"] = wait_share
    table = FigureTable(f"a set of {options.times}x a budget of {options.budget}", list(cells), [list(cells.values())])
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    save_result(options, "streaming", [table], found, PACKAGES)
    return 0


def measure(path: Path, budget_nbytes: int, times: int) -> dict[str, Any]:
    """Train one epoch on so many times the budget."""
    write_rows(path, times * budget_nbytes)
    dataset = datasets.load(path, target="y")
    settings: dict[str, Any] = {"epochs": 1, "random_state": 0}
    estimators.DNNRegressor(**settings, hidden_units=(32,)).fit({"x": np.arange(200.0)}, np.arange(200.0))
    memory = ResidentMeter()
    memory.reset_peak()
    before, begin = memory.peak_nbytes(), perf_counter()
    model = estimators.DNNRegressor(**settings, hidden_units=(64, 32), batch_size=2048, budget=budget_nbytes).fit(dataset)
    seconds, peak_nbytes = perf_counter() - begin, memory.peak_nbytes() - before
    return {
        "set_nbytes": path.stat().st_size,
        "num_rows": len(dataset),
        "peak_nbytes": peak_nbytes,
        "wait_share": model.input_wait_seconds_ / seconds,
        "r2": model.score(*make_rows(np.random.default_rng(NUM_BLOCKS))),
    }


def make_rows(rng: np.random.Generator) -> tuple[dict[str, NDArray], NDArray]:
    """A block of rows, and a target of which three columns tell all but the noise."""
    x = rng.normal(size=(BLOCK_ROWS, NUM_COLUMNS))
    y = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=BLOCK_ROWS)
    return {f"x{place}": x[:, place] for place in range(NUM_COLUMNS)}, y


def write_rows(path: Path, nbytes: int) -> None:
    """A file of at least so many bytes: a few blocks of rows, over and over."""
    import pyarrow as pa
    from pyarrow import parquet

    tables = []
    for number in range(NUM_BLOCKS):
        columns, y = make_rows(np.random.default_rng(number))
        tables.append(pa.table({**columns, "y": y}))
    with parquet.ParquetWriter(path, tables[0].schema, compression="none", use_dictionary=False) as writer:
        for number in range(-(-nbytes // tables[0].nbytes)):
            writer.write_table(tables[number % NUM_BLOCKS])


if __name__ == "__main__":
    sys.exit(main())
