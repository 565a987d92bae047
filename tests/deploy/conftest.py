"""A small folder of models, and the chart that is written for it, once for all tests."""

from pathlib import Path

import pytest
from models import save_scale, save_sum

from tensorferry.deploy.chart import write_chart
from tensorferry.deploy.options import ChartOptions


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that load in no time."""
    root = tmp_path_factory.mktemp("small") / "models"
    save_scale(root, "double", 2.0)
    save_sum(root, "sum")
    return root


@pytest.fixture(scope="session")
def measured_chart(small_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of these models, with what they were measured to need."""
    folder = tmp_path_factory.mktemp("charts") / "reviews"
    write_chart(ChartOptions(repository=small_models, to=folder))
    return folder
