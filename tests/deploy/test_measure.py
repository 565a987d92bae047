"""Measuring ends, whatever the server does that is measured."""

import os
from pathlib import Path

import pytest

from tensorferry.deploy import measure
from tensorferry.errors import BadModel


@pytest.mark.parametrize("script", ["exec sleep 600", "trap '' TERM; while :; do sleep 0.05; done"], ids=["silent", "deaf"])
def test_a_server_that_never_listens_is_given_up(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "python"
    server.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    server.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(server))
    monkeypatch.setattr(measure, "_READY_SECONDS", 0.5)
    monkeypatch.setattr(measure, "_STOP_SECONDS", 0.5)
    with pytest.raises(BadModel, match="did not begin within"):
        measure.measure_repository(tmp_path, trust=False)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
