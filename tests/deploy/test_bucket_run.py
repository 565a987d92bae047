"""A run in a bucket: copied as it grows, brought back before it goes on, and never a checkpoint that is not whole."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from image_environment import make_environment
from object_server import Environ, ObjectServer

from tensorferry.cli import main
from tensorferry.deploy.bucket_run import BucketCopy, restore_run
from tensorferry.deploy.check.manifests import Manifest, list_of, read_manifests
from tensorferry.deploy.packages import list_packages
from tensorferry.errors import RunFailed
from tensorferry.serve.sources.object_store import ObjectStore
from tensorferry.serve.sources.source import SourceFailed
from tensorferry.train.checkpoints import RunState, find_newest, save_checkpoint

_OWN = Path(__file__).parents[1] / "train"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    started = ObjectServer()
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    yield started
    started.close()


@pytest.fixture
def url(server: ObjectServer) -> str:
    """A place that no other test has: the servers of one process hold one bucket."""
    return f"s3://bucket/{secrets.token_hex(8)}/pretrain"


def _open(folder: Path, url: str) -> BucketCopy:
    copy = BucketCopy(folder, ObjectStore(url))
    copy.begin()
    return copy


def _names(url: str) -> set[str]:
    return {file.path for file in ObjectStore(url).list_files()}


def _save(run: Path, step: int) -> None:
    def write(folder: Path) -> None:
        for name in ("weights.bin", "zz-optimizer.bin"):
            (folder / name).write_bytes(f"{name} {step}".encode() * 100)

    save_checkpoint(run / "checkpoints", RunState(step=step), write)
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": at}) + "\n" for at in range(1, step + 1)))


def _newest(run: Path) -> int | None:
    found = find_newest(run / "checkpoints", lambda _: None)
    return None if found is None else found[1].step


def test_what_comes_back_is_what_was_there(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    (tmp_path / "run" / ".lock").write_text("held")
    (tmp_path / "run" / "checkpoints" / ".step-00000020.part").mkdir()
    (tmp_path / "run" / "checkpoints" / ".step-00000020.part" / "weights.bin").write_text("half")
    _open(tmp_path / "run", url).update()
    restore_run(url, tmp_path / "back")
    files = {path.relative_to(tmp_path / "back") for path in (tmp_path / "back").rglob("*") if path.is_file()}
    step = Path("checkpoints", "step-00000010")
    assert files == {Path("metrics.jsonl"), *(step / name for name in ("state.json", "weights.bin", "zz-optimizer.bin"))}
    assert all((tmp_path / "back" / each).read_bytes() == (tmp_path / "run" / each).read_bytes() for each in files)
    assert _newest(tmp_path / "back") == 10


def test_only_what_changed_is_sent_again(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    copy = _open(tmp_path / "run", url)
    copy.update()
    sent = _record(server)
    copy.update()
    _open(tmp_path / "run", url).update()  # as a pod's container that was started again
    # files that grow are sent once more by one that does not know them
    assert sent == ["metrics.jsonl"]
    (tmp_path / "run" / "metrics.jsonl").write_text("longer\n" * 20)
    copy.update()
    assert sent == ["metrics.jsonl"] * 2


def _record(server: ObjectServer) -> list[str]:
    sent: list[str] = []

    def note(environ: Environ) -> None:
        if environ["REQUEST_METHOD"] in ("PUT", "DELETE"):
            sent.append(environ["PATH_INFO"].rpartition("/pretrain/")[2])

    server.fault = note
    return sent


def test_the_file_that_makes_a_checkpoint_whole_is_sent_last(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    sent = _record(server)
    _open(tmp_path / "run", url).update()
    assert [Path(each).name for each in sent][-1] == "state.json"


def test_a_checkpoint_that_was_cut_short_is_passed_over(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    copy = _open(tmp_path / "run", url)
    copy.update()
    _save(tmp_path / "run", 20)

    def refuse(environ: Environ) -> tuple[str, bytes] | None:
        is_second = environ["REQUEST_METHOD"] == "PUT" and "step-00000020/zz" in environ["PATH_INFO"]
        return ("403 Forbidden", b"") if is_second else None

    server.fault = refuse
    with pytest.raises(SourceFailed, match="zz-optimizer"):
        copy.update()
    server.fault = None
    restore_run(url, tmp_path / "back")
    assert _newest(tmp_path / "back") == 10
    copy.update()
    restore_run(url, tmp_path / "later")
    assert _newest(tmp_path / "later") == 20


def test_old_checkpoints_go_once_newer_ones_are_there(server: ObjectServer, url: str, tmp_path: Path) -> None:
    copy = _open(tmp_path / "run", url)
    for step in (10, 20, 30, 40):
        _save(tmp_path / "run", step)
        copy.update()
    kept = {Path(name).parts[1] for name in _names(url) if name.startswith("checkpoints/")}
    assert kept == {"step-00000030", "step-00000040"}


def test_an_empty_folder_removes_nothing(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    _open(tmp_path / "run", url).update()
    before = _names(url)
    (tmp_path / "empty").mkdir()
    _open(tmp_path / "empty", url).update()
    assert _names(url) == before


def test_a_run_that_is_there_stays_and_none_is_made_of_nothing(server: ObjectServer, url: str, tmp_path: Path) -> None:
    restore_run(url, tmp_path / "back")
    assert not list(tmp_path.iterdir())
    _save(tmp_path / "run", 10)
    _open(tmp_path / "run", url).update()
    (tmp_path / "back").mkdir()
    restore_run(url, tmp_path / "back")
    assert not list((tmp_path / "back").iterdir())


def test_a_restore_that_breaks_leaves_nothing(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    _open(tmp_path / "run", url).update()
    server.fault = lambda environ: ("403 Forbidden", b"") if environ["PATH_INFO"].endswith("weights.bin") else None
    with pytest.raises(RunFailed, match="cannot be brought back"):
        restore_run(url, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_names_that_lead_elsewhere_are_refused(server: ObjectServer, url: str, tmp_path: Path) -> None:
    server.put(f"{url.removeprefix('s3://bucket/')}/a%5Cb", b"")
    with pytest.raises(RunFailed, match="is no file of a run"):
        restore_run(url, tmp_path / "back")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "says"), [("ftp://host/runs", "cannot be kept at"), ("s3://key:secret@bucket/runs", "holds a user or a password")]
)
def test_a_bad_address_is_one_line(url: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "keep", str(tmp_path / "run"), url, "--restore"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


class _Pod:
    """The containers of a training's pod as processes, with an empty folder in place of its volume."""

    def __init__(self, job: Manifest, folder: Path, python: Path, server: ObjectServer) -> None:
        folder.mkdir()
        assert job.pod is not None
        self.spec: dict[str, Any] = job.pod["spec"]
        self.folder, self._ferry, self._server = folder, python.with_name("ferry"), server
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        """One of them, with the bucket's variables where it names their secret."""
        arguments = [each.replace("/runs/", f"{self.folder}/", 1) if "s3:" not in each else each for each in container["args"]]
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        variables |= self._server.environment if "envFrom" in container else {}
        place = {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1", "HOME": str(self.folder.parent)}
        environment = {"PATH": f"{self._ferry.parent}:/usr/bin:/bin", "PYTHONPATH": str(_OWN)} | variables | place
        with open(self.folder.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen([self._ferry, *arguments], env=environment, cwd="/", stdout=log, stderr=log)
        self.started.append(process)
        return process

    def read_log(self) -> str:
        return self.folder.with_suffix(".log").read_text(errors="replace")

    def run(self, stop_after: int | None) -> int:
        """As the kubelet does: init containers first, then the training beside its sidecar, which is told to stop last."""
        restore, keep = self.spec["initContainers"]
        assert keep["restartPolicy"] == "Always"
        assert self.start(restore).wait(timeout=60) == 0, self.read_log()
        beside, training = self.start(keep), self.start(self.spec["containers"][0])
        rows = self.folder / "pretrain" / "metrics.jsonl"
        while stop_after is not None and not (rows.exists() and rows.read_text().count("\n") >= stop_after):
            assert training.poll() is None, self.read_log()
            time.sleep(0.02)
        if stop_after is not None:
            training.send_signal(signal.SIGTERM)
        code = training.wait(timeout=300)
        beside.send_signal(signal.SIGTERM)
        assert beside.wait(timeout=60) == 0, self.read_log()
        return code


def test_a_training_that_loses_its_pod_goes_on_from_the_bucket(server: ObjectServer, url: str, tmp_path: Path) -> None:
    command = ["deploy", "train", "teams:Layered", "--kind", "job", "--steps", "400", "--every", "100", "--seed", "7"]
    place = ["--checkpoints", url.removesuffix("/pretrain"), "--credentials", "bucket", "--image", "registry.example.com/train:1"]
    assert main([*command, *place, "--to", str(tmp_path / "pretrain")]) == 0
    (job,) = [each for each in read_manifests(tmp_path / "pretrain")[0] if each.kind == "Job"]
    assert not [volume for volume in list_of(job.pod, "spec", "volumes") if "persistentVolumeClaim" in volume]
    packages = list_packages((), ("sources",), is_for_training=True)
    python = make_environment(tmp_path / "environment", packages)
    first, second = (_Pod(job, tmp_path / name, python, server) for name in ("first", "second"))
    try:
        assert first.run(stop_after=3) == 143, first.read_log()
        assert second.run(stop_after=None) == 0, second.read_log()
    finally:
        for process in (*first.started, *second.started):
            process.kill()
            process.wait()
    assert "brought back" in second.read_log()
    assert "from step" in second.read_log()
    restore_run(url, tmp_path / "back")
    steps = [json.loads(line)["step"] for line in (tmp_path / "back" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 401))
    assert _newest(tmp_path / "back") == 400


def test_what_was_written_last_is_sent_on_sigterm(server: ObjectServer, url: str, tmp_path: Path) -> None:
    _save(tmp_path / "run", 10)
    command = [sys.executable, "-m", "tensorferry.cli", "deploy", "keep", str(tmp_path / "run"), url]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        while "checkpoints/step-00000010/state.json" not in _names(url):
            assert process.poll() is None
            time.sleep(0.05)
        _save(tmp_path / "run", 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert "checkpoints/step-00000020/state.json" in _names(url)
