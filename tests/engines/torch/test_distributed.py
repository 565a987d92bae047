"""Under torch's own data-parallel engines nothing changes either."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("distributed.py")


def _run(wrapper: str, folder: Path, mode: str) -> list[str]:
    paths = os.pathsep.join([str(PROGRAM.parent), *sys.path])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), wrapper, str(folder), mode],
            env=os.environ | {"PYTHONPATH": paths, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_two_processes_train_identically_with_and_without_a_budget(wrapper: str, tmp_path: Path) -> None:
    plain, large = _run(wrapper, tmp_path, "plain"), _run(wrapper, tmp_path, "ferry")
    assert len(plain[0]) == 64
    assert plain == large
