"""`ferry fit`: a table becomes a checked model."""

import argparse
import json
import sys
from pathlib import Path

_EXAMPLES = """examples:
  ferry fit adult --out runs/adult                                   boosted trees on a dataset of `ferry datasets`
  ferry fit sales.csv --target price --model linear                  a file of yours
  ferry fit adult --model dnn --set hidden_units=[64,32] --set epochs=10
  ferry fit data.csv --target species --model model.py:build         an estimator of yours, with feature columns
  ferry fit adult --calibrate isotonic --threshold f1                true probabilities, and the best cut for F1

A fifth of the rows is kept to test on. The run is a folder with the model, its figures, and report.html: metrics, importance of
each column, calibration. Then: ferry optimize runs/adult --to models/ and ferry serve models/
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "fit",
        help="fit a table: a checked model and a page, from a CSV file or a dataset by name",
        description="Fit a model to a table, and check it on rows that it has not seen.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", metavar="TABLE", help="a name from `ferry datasets`, or a CSV, Parquet or JSON Lines file")
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict (default: the dataset's own)")
    parser.add_argument(
        "--model",
        default="boosted-trees",
        metavar="NAME",
        help="baseline, linear, boosted-trees, dnn, wide-deep, or file.py:function for one of yours (default: %(default)s)",
    )
    parser.add_argument("--task", default="auto", metavar="NAME", help="classes or values (default: as the target looks)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the model, such as epochs=10; repeatable",
    )
    parser.add_argument("--calibrate", metavar="METHOD", help="isotonic or sigmoid: make probabilities true, on rows set aside")
    parser.add_argument(
        "--threshold",
        metavar="VALUE",
        help="where two classes part: a probability, or f1, balanced_accuracy or accuracy to find the best",
    )
    parser.add_argument(
        "--test", type=float, default=0.2, metavar="SHARE", help="share of rows to test on (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides which rows are tested on (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that train a network together (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put the run (default: runs/ and the table's name)")
    parser.add_argument("--force", action="store_true", help="overwrite the run in that folder")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry.cli.train import read_pair
    from tensorferry.fitting.page import describe_fit
    from tensorferry.fitting.request import FitRequest
    from tensorferry.fitting.run import fit_table

    folder = options.out or Path("runs") / Path(options.table).stem
    request = FitRequest(
        table=options.table,
        target=options.target,
        model=options.model,
        task=options.task,
        settings=dict(read_pair(text) for text in options.set),
        seed=options.seed,
        test_share=options.test,
        calibrate=options.calibrate,
        threshold=options.threshold,
        workers=options.workers,
        command=options.command,
    )
    figures = fit_table(request, folder, force=options.force, tell=lambda line: print(line, file=sys.stderr))
    if options.json:
        print(json.dumps({"folder": str(folder), **figures.to_json()}))
    else:
        print(describe_fit(figures))
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
    return 0
