"""Raw rows, strings and numbers, through the prediction server: are the answers those of `predict`, and what do columns cost?

    python benchmarks/served_rows.py               a network and trees on adult
    python benchmarks/served_rows.py --no-times    the answers alone: where other work runs on the machine

Every estimator is exported with its feature columns inside the graph and asked row by row over HTTP. CPU is what the server takes
for a row, beside a plain network of the same layers that is sent numbers: in a tensor for each column, as the estimators are sent
theirs, and in one tensor for all of them.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import tritonclient.http as triton
from numpy.typing import NDArray
from rich.console import Console

from results import FigureTable, parse_options, save_result
from serve_graphs import Graph
from serve_servers import Running, run_ferry
from tensorferry import datasets, estimators
from tensorferry.estimators.exporting import export

HIDDEN, NUM_TRAINED = (100, 75, 50, 25), 10_000
PLAIN, PACKED = "plain network, a tensor a column", "plain network, one tensor"
PACKAGES = ("onnxruntime", "keras", "lightgbm", "numpy")


def main(argv: list[str] | None = None) -> int:
    """Train, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="how many rows are asked in a turn, one at a time")
    parser.add_argument("--turns", type=int, default=5, help="of which the median counts")
    parser.add_argument("--epochs", type=int, default=5, help="of the network")
    parser.add_argument("--no-times", action="store_true", help="leave out CPU, which says nothing on a busy machine")
    options = parse_options(parser, __file__, argv)
    train, test = datasets.load("adult").select(range(2 * NUM_TRAINED)).split(0.5, seed=0)
    rows = test.select(range(options.rows))
    models = {
        "DNNLinearCombinedClassifier": estimators.DNNLinearCombinedClassifier(
            hidden_units=HIDDEN, epochs=options.epochs, random_state=0
        ).fit(train),
        "BoostedTreesClassifier": estimators.BoostedTreesClassifier(random_state=0).fit(train),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models.items():
            model.export(Path(folder) / name)
        names = [column.name for column in rows.input_columns]
        numbers = np.random.default_rng(0).normal(size=(len(rows), len(names))).astype(np.float32)
        plain = {"plain": dict(zip(names, np.split(numbers, len(names), axis=1), strict=True)), "packed": {"x": numbers}}
        for name, tensors in plain.items():
            save_plain(Path(folder) / name, {column: values.shape[1] for column, values in tensors.items()})
        with run_ferry(Path(folder)) as server:
            found = [ask_model(server, name, model, rows, options) for name, model in models.items()]
            if not options.no_times:
                for title, (name, tensors) in zip((PLAIN, PACKED), plain.items(), strict=True):
                    seconds = [measure_cpu(server, name, tensors) for _ in range(options.turns)]
                    found.append({"model": title, "cpu_seconds": median(seconds)})
    table = make_table(found, options.rows)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    save_result(options, "served_rows", [table], {"models": found}, PACKAGES)
    return 0


def ask_model(server: Running, name: str, model: Any, rows: datasets.Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """How far the server's answers are from the model's own, and the CPU seconds of a row."""
    tensors = model.to_tensors(rows)
    answers = ask(server, name, tensors, lambda result: (result.as_numpy("probabilities"), result.as_numpy("predicted_class")))
    told, classes = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    words = np.array([word.decode() for word in classes[:, 0]])
    found = {
        "model": name,
        "difference": float(np.abs(told - model.predict_proba(rows)).max()),
        "num_other_classes": int((words != model.predict(rows)).sum()),
    }
    if not options.no_times:
        found["cpu_seconds"] = median(measure_cpu(server, name, tensors) for _ in range(options.turns))
    return found


def measure_cpu(server: Running, name: str, tensors: dict[str, NDArray]) -> float:
    """CPU seconds that the server takes for a row."""
    before = server.cpu_seconds()
    num_rows = len(ask(server, name, tensors, lambda _: None))
    return (server.cpu_seconds() - before) / num_rows


def ask(server: Running, name: str, tensors: dict[str, NDArray], read: Callable[[Any], Any]) -> list[Any]:
    """What each row's answer says, asked one at a time."""
    kinds = {"f4": "FP32", "f8": "FP64", "O": "BYTES"}
    with triton.InferenceServerClient(server.http.removeprefix("http://")) as client:
        found = []
        for row in range(len(next(iter(tensors.values())))):
            inputs = []
            for column, values in tensors.items():
                inputs.append(triton.InferInput(column, [1, values.shape[1]], kinds[values.dtype.str.lstrip("<|")]))
                inputs[-1].set_data_from_numpy(values[row : row + 1])
            found.append(read(client.infer(name, inputs)))
        return found


def save_plain(folder: Path, widths_of_inputs: dict[str, int]) -> None:
    """A network of the same layers that takes numbers, served as estimators are."""
    graph = Graph()
    names = list(widths_of_inputs)
    x = names[0] if len(names) == 1 else graph.add("Concat", *names, axis=1)
    widths = [sum(widths_of_inputs.values()), *HIDDEN]
    for num_in, num_out in pairwise(widths):
        x = graph.add("Relu", graph.dense(x, num_in, num_out))
    scores = graph.dense(x, HIDDEN[-1], 2)
    inputs: dict[str, tuple[int, list[int | str]]] = {
        name: (onnx.TensorProto.FLOAT, ["n", width]) for name, width in widths_of_inputs.items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = graph.save(Path(scratch) / "model.onnx", inputs, graph.add("Softmax", scores, axis=1), ["n", 2])
        export(path.read_bytes(), folder)


def make_table(found: list[dict[str, Any]], num_rows: int) -> FigureTable:
    """A row a model."""
    plain, packed = (next((each["cpu_seconds"] for each in found if each["model"] == title), None) for title in (PLAIN, PACKED))
    rows = []
    for each in found:
        cells = [each["model"]]
        cells += [f"{each['difference']:.1e}", f"{each['num_other_classes']}"] if "difference" in each else ["", ""]
        if plain is not None and packed is not None:
            seconds = each["cpu_seconds"]
            cells += [f"{1000 * seconds:.2f} ms", f"{seconds / plain:.2f}x", f"{seconds / packed:.2f}x"]
        rows.append(cells)
    columns = [
        "model",
        "differs by",
        "other classes",
        *(["CPU of a row", "of plain", "of one tensor"] if plain is not None else []),
    ]
    return FigureTable(f"{num_rows} rows of adult, one at a time", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
