"""Manifests for a training: what a cluster would refuse, and the training that its pods would start."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import beside_rules

from tensorferry.cli import main
from tensorferry.deploy.check import check
from tensorferry.deploy.check.manifests import Manifest, dig, list_of, read_manifests
from tensorferry.deploy.check.selectors import selected_by, selects
from tensorferry.deploy.options import CheckOptions

_IMAGE = ["--image", "registry.example.com/train:1"]
_TEAMS = "teams:Layered"  # tests/train
_KINDS = ("trainjob", "jobset", "job")
_DEFINITIONS = Path(os.environ["FERRY_CRDS"]) if "FERRY_CRDS" in os.environ else None

_TRAIN_JOB = """\
# teams:Layered on 2 nodes, 8 processes each. Written by `ferry deploy train`.
# The Trainer sets torchrun's variables (PET_*), which `ferry train` reads; do not set them here.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: "pretrain"
  labels:
    kueue.x-k8s.io/queue-name: "research"
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: "pretrain"
  trainer:
    numNodes: 2
    numProcPerNode: 8
    command: [ferry]
    args:
      - "train"
      - "teams:Layered"
      - "--out=/runs/pretrain"
      - "--auto-resume"
      - "--set=batch=32"
      - "--set=steps=600"
      - "--parallel=fsdp"
"""
_ASKED = ["--nodes", "2", "--gpus", "8", "--queue", "research", "--set", "batch=32", "--steps", "600", "--parallel", "fsdp"]


def _write(folder: Path, *options: str) -> dict[str, Manifest]:
    assert main(["deploy", "train", _TEAMS, "--to", str(folder), *_IMAGE, *options]) == 0
    manifests, findings = read_manifests(folder)
    assert not findings
    return {each.kind: each for each in manifests}


def test_a_train_job_is_short_enough_to_read(tmp_path: Path) -> None:
    _write(tmp_path / "pretrain", *_ASKED)
    assert (tmp_path / "pretrain" / "trainjob.yaml").read_text() == _TRAIN_JOB


def test_the_runtime_is_one_that_the_trainer_finds_its_way_in(tmp_path: Path) -> None:
    found = _write(tmp_path / "pretrain", *_ASKED, "--cluster-runtime")
    runtime, job = found["ClusterTrainingRuntime"], found["TrainJob"]
    assert job.get("spec", "runtimeRef", "kind") == runtime.kind
    assert job.get("spec", "runtimeRef", "name") == runtime.name
    (node,) = runtime.get("spec", "template", "spec", "replicatedJobs")
    assert node["name"] == "node"
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = _container(runtime)
    assert container["name"] == "node"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert not [each for each in container["env"] if each["name"].startswith("PET_")]


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_without_the_trainer_pods_get_its_variables_from_us(kind: str, tmp_path: Path) -> None:
    found = _write(tmp_path / "pretrain", *_ASKED, "--kind", kind)
    job = next(each for each in found.values() if each.pod is not None)
    (container,) = _container(job)
    variables = {each["name"]: each.get("value") for each in container["env"]}
    first = {"jobset": "pretrain-node-0-0.pretrain:29500", "job": "pretrain-0.pretrain:29500"}[kind]
    assert f"{variables['PET_MASTER_ADDR']}:{variables['PET_MASTER_PORT']}" == first
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("2", "8")
    if kind == "job":
        assert job.get("spec", "template", "spec", "subdomain") == found["Service"].name
        assert found["Service"].get("spec", "clusterIP") == "None"


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["--workers", "2"], "ReadWriteOnce"),
        (_ASKED, "ReadWriteMany"),
        (["--checkpoints", "pvc:runs", "--budget", "1GiB"], None),
        (["--checkpoints", "s3://bucket/runs", "--credentials", "bucket"], None),
    ],
)
def test_a_cluster_would_refuse_nothing(kind: str, options: list[str], mode: str | None, tmp_path: Path) -> None:
    found = _write(tmp_path / "pretrain", "--kind", kind, *options)
    claim = found.get("PersistentVolumeClaim")
    assert (None if claim is None else claim.get("spec", "accessModes")) == (None if mode is None else [mode])
    result = check(CheckOptions(folder=tmp_path / "pretrain", definitions=_DEFINITIONS))
    assert result.findings == ()
    if _DEFINITIONS is not None:
        assert beside_rules(result.not_checked) == []


@pytest.mark.parametrize("kind", _KINDS)
def test_a_name_that_yaml_reads_as_something_else_stays_a_name(kind: str, tmp_path: Path) -> None:
    found = _write(tmp_path / "on", "--kind", kind, "--nodes", "2", "--queue", "123", "--checkpoints", "pvc:true")
    assert {each.get("metadata", "name") for each in found.values()} == {"on"}
    assert check(CheckOptions(folder=tmp_path / "on")).findings == ()
    (claim,) = [
        dig(volume, "persistentVolumeClaim", "claimName")
        for each in found.values()
        for volume in list_of(each.pod, "spec", "volumes")
        if "persistentVolumeClaim" in volume
    ]
    assert claim == "true"


def test_a_runtime_that_is_there_is_patched(tmp_path: Path) -> None:
    own = _write(tmp_path / "own", *_ASKED)
    found = _write(tmp_path / "pretrain", *_ASKED, "--runtime", "torch-distributed", "--name", "own")
    assert set(found) == {"TrainJob", "NetworkPolicy", "PersistentVolumeClaim"}
    job = found["TrainJob"]
    assert job.get("spec", "runtimeRef", "name") == "torch-distributed"
    (container,) = _container(own["TrainingRuntime"])
    trainer = job.get("spec", "trainer")
    assert (trainer["image"], trainer["resourcesPerNode"]) == (container["image"], container["resources"])
    (pod,) = job.patched_pods
    (patched,) = pod["spec"]["containers"]
    assert pod["spec"]["volumes"] == _pod(own["TrainingRuntime"])["volumes"]
    assert {key: patched[key] for key in ("env", "volumeMounts", "securityContext")}.items() <= container.items()
    result = check(CheckOptions(folder=tmp_path / "pretrain", definitions=_DEFINITIONS))
    assert result.findings == ()
    if _DEFINITIONS is not None:
        assert beside_rules(result.not_checked) == []


@pytest.mark.parametrize("kind", _KINDS)
def test_only_pods_of_a_training_reach_each_other(kind: str, tmp_path: Path) -> None:
    found = _write(tmp_path / "pretrain", *_ASKED, "--kind", kind)
    maker = next(each for each in found.values() if each.pod is not None)
    policy = found["NetworkPolicy"]
    assert [each.name for each in selected_by(policy, [maker])] == [maker.name]
    (rule,) = list_of(policy.body, "spec", "ingress")
    labels = dig(maker.pod, "metadata", "labels")
    assert [selects(peer["podSelector"], labels) for peer in rule["from"]] == [True]
    assert not selects(rule["from"][0]["podSelector"], labels | {"app.kubernetes.io/name": "other"})


def test_a_mistake_in_the_pods_of_a_runtime_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "pretrain", *_ASKED)
    path = tmp_path / "pretrain" / "runtime.yaml"
    path.write_text(path.read_text().replace("runAsNonRoot: true", "runAsNonRoot: false"))
    result = check(CheckOptions(folder=tmp_path / "pretrain"))
    assert [str(each) for each in result.findings] == [
        "TrainingRuntime pretrain, container node: may run as root: runAsNonRoot: true"
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--checkpoints", "s3://bucket/runs", "--nodes", "2"], "2 nodes write one checkpoint together"),
        (["--checkpoints", "ftp://host/runs"], "cannot be kept at 'ftp://host/runs'"),
        (["--checkpoints", "pvc:runs", "--credentials", "bucket"], "--credentials are those of a bucket"),
        (["--checkpoints", "runs"], "write pvc:CLAIM"),
        (["--gpus", "8", "--workers", "2"], "each of 8 GPUs gets a process"),
        (["--gpus", "8", "--set", "batch=5"], "a batch of 5 has no row for each of 8 workers"),
        (["--nodes", "2", "--parallel", "nonsense"], "there is no way 'nonsense'"),
        (["--parallel", "fsdp"], "--parallel is for several processes"),
        (["--set", "color=red"], "color"),
        (["--image", "registry.example.com/train"], "has no tag"),
        (["--name", "Pretrain"], "say --name pretrain"),
        (["--memory", "16 GB"], "expected a quantity such as 16Gi"),
        (["--queue", "My_Queue"], "is no name of a queue"),
        (["--data", "reviews.csv"], "is read in the pod"),
        (["--kind", "job", "--cluster-runtime"], "--cluster-runtime is for a TrainJob"),
        (["--kind", "job", "--runtime", "torch-distributed"], "--runtime is for a TrainJob"),
        (["--runtime", "torch-distributed", "--cluster-runtime"], "is there already"),
        (["--runtime", "torch-distributed", "--checkpoints", "s3://bucket/runs"], "gets no containers for a bucket"),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_is_written(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "train", _TEAMS, "--to", str(tmp_path / "job"), *_IMAGE, *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_batch_that_nobody_set_grows_with_the_processes_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _write(tmp_path / "pretrain", "--nodes", "2", "--gpus", "8")
    assert "--set=batch=80" in found["TrainJob"].get("spec", "trainer", "args")
    assert "batch=80: the recipe's 5 for each of 16 processes" in capsys.readouterr().out
    found = _write(tmp_path / "small", "--nodes", "2")
    assert not any("batch" in argument for argument in found["TrainJob"].get("spec", "trainer", "args"))


@pytest.mark.parametrize(("chosen", "expected"), [("torch", "torch"), ("", "tensorflow")])
def test_pods_of_a_keras_recipe_take_the_back_end_it_was_checked_for(
    chosen: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", chosen)
    assert main(["deploy", "train", "unet3d-brain", "--to", str(tmp_path / "brain"), "--kind", "job", *_IMAGE]) == 0
    (job,) = (each for each in read_manifests(tmp_path / "brain")[0] if each.kind == "Job")
    assert {"name": "KERAS_BACKEND", "value": expected} in _container(job)[0]["env"]


def test_a_recipe_that_is_a_file_here_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "train", "my.py:Recipe", "--to", str(tmp_path / "job"), *_IMAGE]) == 2
    assert "is a file of this machine" in capsys.readouterr().err


def _pod(manifest: Manifest) -> dict[str, Any]:
    assert manifest.pod is not None
    spec: dict[str, Any] = manifest.pod["spec"]
    return spec


def _container(manifest: Manifest) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = _pod(manifest)["containers"]
    return containers


def test_manifests_are_plain_yaml(tmp_path: Path) -> None:
    _write(tmp_path / "pretrain", "--kind", "job")
    for path in (tmp_path / "pretrain").iterdir():
        assert yaml.safe_load(path.read_text())["kind"]
