"""What the command line says where the extra is missing, and that it loads nothing that it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
from models import save_scale


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["serve", "."], ["bench-serve", "localhost:1", "model"]])
def test_a_missing_extra_is_one_line_that_says_what_to_install(arguments: list[str]) -> None:
    missing = "import sys; sys.modules['uvloop'] = sys.modules['orjson'] = None"
    done = run(f"{missing}; from tensorferry.cli import main; sys.exit(main({arguments}))")
    assert done.returncode == 2
    assert 'pip install "tensorferry[serve]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_measuring_over_grpc_says_what_to_install_where_grpcio_is_missing() -> None:
    code = "import sys; sys.modules['grpc'] = None; from tensorferry.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "bench-serve", "grpc://localhost:1", "m"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert 'measuring over gRPC needs grpc, which is not installed: pip install "tensorferry[grpc]"' in done.stderr


def test_the_server_loads_no_framework_and_no_runtime_before_a_model_needs_it(tmp_path: Path) -> None:
    heavy = ("torch", "tensorflow", "keras", "onnxruntime", "openvino", "grpc", "tritonclient")
    save_scale(tmp_path, "double", 2.0)
    code = f"""
import sys
from pathlib import Path
import tensorferry.serve.server
print([name for name in {heavy} if name in sys.modules])
from tensorferry.serve.core.workshop import Workshop
from tensorferry.serve.core.repository import Repository
repository = Repository(Path({str(tmp_path)!r}), Workshop())
repository.load_all()
print([name for name in {heavy} if name in sys.modules], len(repository.models()))
repository.close()
"""
    done = run(code)
    assert done.stdout.splitlines() == ["[]", "['onnxruntime'] 1"], done.stderr


def test_a_server_that_has_ended_leaves_the_interpreter_as_it_was(tmp_path: Path) -> None:
    code = f"""
import gc, os, signal, sys, threading, time
from tensorferry.cli import main
before = sys.getswitchinterval(), gc.get_threshold(), list(sys.path), gc.get_freeze_count()
def end_once_it_serves():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_once_it_serves, daemon=True).start()
code = main(["serve", {str(tmp_path)!r}, "--http-port", "0", "--no-grpc"])
print(code, before == (sys.getswitchinterval(), gc.get_threshold(), list(sys.path), gc.get_freeze_count()))
"""
    done = run(code)
    assert done.stdout.splitlines()[-1] == "0 True", done.stderr
