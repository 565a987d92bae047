"""The pods that train, as processes: they find each other, are stopped and go on, with what the image for trainings has."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from image_environment import make_environment
from status_servers import run_status_server

from tensorferry.cli import main
from tensorferry.deploy.check.manifests import Manifest, list_of, read_manifests
from tensorferry.deploy.packages import list_packages

_TEAMS = "teams:Layered"  # tests/train, which stands for a package that was installed on top of the image
_OWN = Path(__file__).parents[1] / "train"


def _write(folder: Path, *options: str) -> dict[str, Manifest]:
    command = ["deploy", "train", _TEAMS, "--to", str(folder), "--image", "registry.example.com/train:1", *options]
    assert main(command) == 0
    return {each.kind: each for each in read_manifests(folder)[0]}


@pytest.fixture(scope="module")
def image_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has what the image for trainings installs, and nothing else."""
    packages = list_packages((), (), is_for_training=True)
    return make_environment(tmp_path_factory.mktemp("image") / "environment", packages)


class _Pods:
    """The container `node` of each pod as a process, with a folder in place of the claim."""

    def __init__(self, maker: Manifest, arguments: list[str], python: Path, folder: Path) -> None:
        assert maker.pod is not None
        self.pod = maker.pod["spec"]
        (self.container,) = self.pod["containers"]
        self._arguments = [argument.replace("=/runs/", f"={folder}/runs/") for argument in arguments]
        self._ferry, self._folder = python.with_name("ferry"), folder
        (folder / "runs").mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, variables: list[dict[str, str]]) -> None:
        """A pod for each set of variables, all of which find the first one here."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        for own in variables:
            place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "HOME": str(self._folder)}
            environment = {"PATH": f"{self._ferry.parent}:/usr/bin:/bin", "PYTHONPATH": str(_OWN)} | own | place
            with open(self._folder / f"{len(list(self._folder.glob('*.log')))}.log", "wb") as log:
                started = subprocess.Popen(
                    [self._ferry, *self._arguments], env=environment, cwd="/", stdout=log, stderr=subprocess.STDOUT
                )
            self.processes.append(started)

    def read_logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    def stop(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


@pytest.fixture
def make_pods(image_python: Path, tmp_path: Path) -> Iterator[Callable[[Manifest, list[str]], _Pods]]:
    made: list[_Pods] = []

    def make(maker: Manifest, arguments: list[str]) -> _Pods:
        made.append(_Pods(maker, arguments, image_python, tmp_path))
        return made[-1]

    yield make
    for pods in made:
        pods.stop()


def _read_steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "runs" / "pretrain" / "metrics.jsonl").read_text().splitlines()]


def test_two_pods_train_are_stopped_by_sigterm_and_resume(
    make_pods: Callable[[Manifest, list[str]], _Pods], tmp_path: Path
) -> None:
    found = _write(tmp_path / "pretrain", "--nodes", "2", "--steps", "60", "--every", "30", "--seed", "7")
    trainer = found["TrainJob"].get("spec", "trainer")
    assert trainer["command"] == ["ferry"]
    pods = make_pods(found["TrainingRuntime"], trainer["args"])
    rows = tmp_path / "runs" / "pretrain" / "metrics.jsonl"
    with run_status_server(tmp_path) as server:
        variables = [_by_the_trainer(pods, trainer, node) | server.variables for node in range(trainer["numNodes"])]
        pods.start(variables)
        while not (rows.exists() and rows.read_text().count("\n") > 2):
            assert all(each.poll() is None for each in pods.processes), pods.read_logs()
            time.sleep(0.02)
        pods.processes[1].send_signal(signal.SIGTERM)  # one is evicted; all save and leave
        grace = pods.pod["terminationGracePeriodSeconds"]
        assert [each.wait(timeout=grace) for each in pods.processes] == [143, 143], pods.read_logs()
        policy = found["TrainingRuntime"].get("spec", "template", "spec", "replicatedJobs")[0]["template"]["spec"]
        assert policy["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [143]
        stopped_at = rows.read_text().count("\n")
        assert stopped_at < 60
        pods.start(variables)
        assert [each.wait(timeout=300) for each in pods.processes] == [0, 0], pods.read_logs()
    assert _read_steps(tmp_path) == list(range(1, 61))
    assert f"from step {stopped_at}" in pods.read_logs()
    assert server.statuses[-1]["progressPercentage"] == 100


def _by_the_trainer(pods: _Pods, trainer: dict[str, Any], node: int) -> dict[str, str]:
    """The container's variables and those that the Trainer sets."""
    return {each["name"]: each["value"] for each in pods.container["env"]} | {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(node),
    }


@pytest.mark.parametrize(("options", "num_pods"), [(["--nodes", "2"], 2), (["--workers", "2"], 1)], ids=["two pods", "one pod"])
def test_two_processes_of_a_job_train_by_the_manifests_own_variables(
    options: list[str], num_pods: int, make_pods: Callable[[Manifest, list[str]], _Pods], tmp_path: Path
) -> None:
    found = _write(tmp_path / "pretrain", "--kind", "job", "--steps", "4", "--seed", "7", *options)
    job, service = found["Job"], found["Service"]
    assert job.get("spec", "completions") == job.get("spec", "parallelism") == num_pods
    pods = make_pods(job, _only_container(job)["args"])
    variables = [_by_the_kubelet(pods, index) for index in range(num_pods)]
    # the pod of index 0 of an indexed job has this host name, below its subdomain
    assert {each["PET_MASTER_ADDR"] for each in variables} == {f"{job.name}-0.{service.name}"}
    assert pods.pod["subdomain"] == service.name
    pods.start(variables)
    assert [each.wait(timeout=300) for each in pods.processes] == [0] * num_pods, pods.read_logs()
    assert _read_steps(tmp_path) == [1, 2, 3, 4]


def _only_container(manifest: Manifest) -> dict[str, Any]:
    (container,) = list_of(manifest.pod, "spec", "containers")
    return container


def _by_the_kubelet(pods: _Pods, index: int) -> dict[str, str]:
    """The container's variables as the kubelet reads them, with the annotation that an indexed job gives a pod."""
    annotations = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index)}
    return {
        each["name"]: each["value"] if "value" in each else annotations[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in pods.container["env"]
    }
