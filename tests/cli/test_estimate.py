"""`ferry estimate` and `ferry machines` as a user meets them: tables, JSON, one-line errors."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensorferry.cli import main

NETS = """
import torch
from torch import nn
print("a module that talks")


class Looks(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 4))


def looks():
    return Looks(8, 8)


def fails():
    raise OSError("no weights here")


def number():
    return 42


def sleep():
    import time

    print("asleep", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


def test_json_goes_to_stdout_and_nothing_else_does(nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    arguments = ["--input", "4x3x16x16", "--on", "a100-40gb", "--on", "t4-16gb", "--json", "--html", str(page)]
    assert main(["estimate", f"{nets}:build", *arguments]) == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert [row["machine"]["name"] for row in data["rows"]] == ["a100-40gb", "t4-16gb"]
    assert "a module that talks" in shown.err
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_the_table_is_printed_by_default(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", f"{nets}:build", "--input", "4x3x16x16", "--on", "t4-16gb", "--set", "memory=8GiB"]) == 0
    shown = capsys.readouterr().out
    assert "t4-16gb" in shown
    assert "7.34 GiB" in shown  # without what driver, libraries and rounding take


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["NETS:looks", "--input", "4x8"], "depends on values at nets.py:10"),
        (["NETS:fails", "--input", "4x8"], "the factory failed at nets.py:22: OSError: no weights here"),
        (["NETS:number", "--input", "4x8"], "received int"),
        (["NETS:build", "--input", "4x3x15x15"], "the model rejects an input of 4x3x15x15"),
        (["NETS:build", "--input", "4x3x0x16"], "above zero"),
        (["NETS:build"], "say so, as in --input"),
        (["resnet5", "--batch", "2"], "did you mean 'resnet50'"),
        (["resnet50", "--batch", "-2"], "above zero, such as 512 or 64k, received -2"),
        (["resnet50", "--on", "a100"], "did you mean 'a100"),
        (["resnet50", "--set", "link_out"], "write --set key=value"),
        (["resnet50", "--set", "link_ou=3GB/s"], "did you mean 'link_out'"),
        (["resnet50", "--on", "gone.yaml"], "cannot read a machine from 'gone.yaml'"),
        (["resnet50", "--precision", "bf16", "--on", "t4-16gb"], "does not compute in bf16"),
    ],
)
def test_what_goes_wrong_is_one_line_and_code_2(
    arguments: list[str], says: str, nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("NETS", str(nets)) for word in arguments]
    assert main(["estimate", *words, *([] if "--on" in words else ["--on", "a100-40gb"])]) == 2
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line != "a module that talks"]
    assert len(lines) == 1
    assert lines[0].startswith("ferry: ")
    assert says in lines[0]
    assert shown.out == ""


def test_an_estimate_needs_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "resnet50"]) == 2
    assert "--on" in capsys.readouterr().err


CLUSTER = ["bert-base", "--gpus", "16", "--on", "a100-80gb"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bert-base", "--gpus", "16"], "no machine was named; say which with --on"),
        ([*CLUSTER, "--on", "h100-80gb"], "2 machines were named"),
        (["bert-base", "--gpus", "16", "--on", "cpu-64core-nvme"], "clusters are estimated for GPUs"),
        (["bert-base", "--on", "a100-80gb", "--parallel", "fsdp"], "--parallel is for clusters; say how many GPUs with --gpus"),
        ([*CLUSTER, "--network", "ib-hrd"], "unknown network 'ib-hrd' (did you mean 'ib-hdr'"),
        ([*CLUSTER, "--network", "nvlink3"], "links GPUs inside a node; say --inside nvlink3"),
        ([*CLUSTER, "--parallel", "tensr=2"], "did you mean 'tensor'?"),
        ([*CLUSTER, "--parallel", "tensor=3"], "needs a multiple of 3 GPUs, there are 16"),
        ([*CLUSTER, "--parallel", "tensor=4,data=8"], "needs 32 GPUs, there are 16"),
        ([*CLUSTER, "--parallel", "tensor=8"], "tensor=8 does not divide the 12 heads of bert-base"),
        ([*CLUSTER, "--parallel", "pipeline=8"], "pipeline=8 does not divide the 12 layers of bert-base"),
        ([*CLUSTER, "--parallel", "tensor"], "as in tensor=8"),
        (["resnet50", "--gpus", "16", "--on", "a100-80gb", "--parallel", "tensor=2"], "can be split by data and fsdp only"),
        ([*CLUSTER, "--gpus", "12"], "12 GPUs are no whole number of nodes with 8"),
        ([*CLUSTER, "--batch", "100"], "a batch of 100 cannot be cut into 16 equal parts"),
        ([*CLUSTER, "--batch", "64 q"], "expected --batch to be above zero"),
        ([*CLUSTER, "--batch", "1k", "--micro-batch", "5"], "micro-batches of 5 do not divide the 64 samples of each replica"),
        (["resnet50", "--gpus", "8", "--on", "a100-80gb", "--tokens", "1b"], "--tokens is for models of text"),
        ([*CLUSTER, "--max", "batch"], "--max is for single machines"),
        (["gpt-175b", "--gpus", "8", "--on", "v100-16gb-pcie3", "--parallel", "auto", "--batch", "8"], "in no split"),
    ],
)
def test_what_goes_wrong_with_a_cluster_is_one_line_and_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("ferry: ")
    assert shown.err.count("\n") == 1
    assert says in shown.err
    assert shown.out == ""


def test_a_cluster_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--batch", "1k", "--precision", "fp16", "--tokens", "1b", "--price", "2", "--json"]
    assert main(["estimate", *CLUSTER, *arguments]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["predicted"] is True
    assert (data["num_gpus"], data["batch"]) == (16, 1024)
    assert data["networks"]["between"]["name"] == "ib-hdr"
    assert [point["num_gpus"] for point in data["curve"]] == [8, 16]
    assert data["training"]["num_samples"] == 10**9 // 128
    assert data["training"]["cost"] == pytest.approx(data["training"]["seconds"] / 3600 * 16 * 2)
    assert sum(data["parts"].values()) == pytest.approx(data["step_seconds"])


def test_networks_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "--networks"]) == 0
    shown = capsys.readouterr().out
    for name in ("nvlink2", "nvlink5", "nvswitch", "pcie4", "ib-edr", "ib-hdr", "ib-ndr", "roce-25", "ethernet-100"):
        assert shown.count(f" {name}") >= 2  # in the table and among the sources
    assert main(["machines", "--networks", "--json"]) == 0
    assert all(0 < network["efficiency"] <= 1 for network in json.loads(capsys.readouterr().out))


def test_an_interrupted_estimate_ends_with_one_line(nets: Path) -> None:
    command = [sys.executable, "-m", "tensorferry.cli", "estimate", f"{nets}:sleep", "--input", "4x8", "--on", "t4-16gb"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "a module that talks\n"
        assert child.stderr.readline() == "asleep\n"
        child.send_signal(signal.SIGINT)
        _, rest = child.communicate(timeout=60)
    assert child.returncode == 130
    assert rest.splitlines()[-1] == "ferry: interrupted"
    assert "Traceback" not in rest


def test_machines_lists_the_table_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines"]) == 0
    shown = capsys.readouterr().out
    assert "v100-16gb-pcie3-shared" in shown
    assert "NVIDIA A100 data sheet" in shown


def test_machines_as_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "--json"]) == 0
    data = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert data["a100-40gb"]["flops_per_second"]["tf32"] == 156e12
    assert all(entry["source"] for entry in data.values())


def test_this_machine_can_be_measured_and_estimated_for(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "measure"]) == 0
    assert "this machine" in capsys.readouterr().out
    for precision in ("fp32", "bf16"):
        assert main(["estimate", f"{nets}:build", "--input", "4x3x16x16", "--on", "this", "--precision", precision]) == 0
        assert "this machine" in capsys.readouterr().out
    assert main(["estimate", f"{nets}:build", "--input", "4x3x16x16", "--on", "this", "--set", "memory=1GiB"]) == 2
    assert "it is measured" in capsys.readouterr().err


def test_the_help_of_both_loads_no_framework() -> None:
    code = (
        "import sys; from tensorferry.cli import make_parser; make_parser().parse_args(['machines']); "
        "assert not {'torch', 'numpy', 'yaml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
