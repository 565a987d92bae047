"""What a run of `ferry fit` looks like on disk; whoever only asks for that loads no estimator.

config.json        what was asked
environment.json   on what
figures.json       how good it is on rows that it has not seen
estimator/         the model, as `estimators.load` reads it
report.html        all of it on one page
"""

from pathlib import Path

CONFIG, FIGURES, ENVIRONMENT, ESTIMATOR, PAGE = (
    *("config.json", "figures.json", "environment.json", "estimator", "report.html"),
)


def is_fitted(folder: Path) -> bool:
    """Whether this is a run of `ferry fit`, not of `ferry train`."""
    return (folder / ESTIMATOR).is_dir() and (folder / CONFIG).is_file()
