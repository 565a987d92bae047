"""How far a run is reaches the status server of Kubeflow's Trainer, and whatever that server does, the run goes on."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from listening import TINY, Told
from status_servers import StatusServer, run_status_server

from tensorferry.deploy.check.resource_schemas import make_strict
from tensorferry.train.start import TrainRequest, begin
from tensorferry.train.status_server import post_progress


def _train(folder: Path, variables: dict[str, str]) -> tuple[Told, int]:
    told = Told()
    return told, begin(TrainRequest(TINY, {"steps": "8"}, out=folder, seed=3), post_progress(told, variables))


@pytest.fixture(scope="module")
def told_server(tmp_path_factory: pytest.TempPathFactory) -> StatusServer:
    folder = tmp_path_factory.mktemp("status")
    with run_status_server(folder) as server:
        told, code = _train(folder / "run", server.variables)
    assert (code, told.rows[-1]["step"], told.summary["step"]) == (0, 8, 8)
    return server


def test_the_server_is_told_how_far_the_run_is(told_server: StatusServer) -> None:
    last = told_server.statuses[-1]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert {"step", "loss", "accuracy"} == {metric["name"] for metric in last["metrics"]}
    assert told_server.tokens == {"Bearer secret"}


@pytest.mark.skipif("FERRY_CRDS" not in os.environ, reason="FERRY_CRDS names no folder of definitions of custom resources")
def test_what_it_is_told_fits_the_definition_of_a_train_job(told_server: StatusServer) -> None:
    from jsonschema import Draft202012Validator

    text = Path(os.environ["FERRY_CRDS"], "trainer.kubeflow.org_trainjobs.yaml").read_text()
    schema: Any = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = schema["spec"]["versions"]
    wanted = make_strict(version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["trainerStatus"])
    assert "lastUpdatedTime" in wanted["properties"]
    for status in told_server.statuses:
        Draft202012Validator(wanted).validate(status)
        assert "lastUpdatedTime" in status  # a rule in CEL


def test_without_its_variables_nothing_is_told() -> None:
    told = Told()
    assert post_progress(told, {"KUBEFLOW_TRAINER_SERVER_URL": "https://127.0.0.1:1"}) is told


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"URL": "https://127.0.0.1:1/status"}, "Connection refused"),
        ({"URL": "http://127.0.0.1:1/status"}, "https://"),
        ({"TOKEN": "/nowhere"}, "No such file"),
        ({"URL": "https://["}, ""),
    ],
)
def test_a_server_that_cannot_be_told_costs_one_line(
    changed: dict[str, str], says: str, told_server: StatusServer, tmp_path: Path
) -> None:
    variables = told_server.variables | {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in changed.items()}
    told, code = _train(tmp_path / "run", variables)
    assert (code, told.summary["step"]) == (0, 8)
    (note,) = [note for note in told.notes if "status server" in note]
    assert says in note
    assert "secret" not in note
