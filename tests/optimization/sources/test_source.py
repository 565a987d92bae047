"""What is told of an exporter's error, in one line with the op or the weight in it, and what exporters are kept from."""

import os

import pytest

from tensorferry.errors import BadModel
from tensorferry.optimization.sources.source import quiet_exporters, root_cause

OPENVINO = """Check 'false' failed at src/frontends/report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- prim::Constant with a message:
None constant cannot be converted to OpenVINO opset and should be removed by consuming operation.
Summary:
-- No conversion rule found for operations: aten::linalg_svdvals
-- Conversion is failed for: prim::Constant
"""
ONNX = f"onnxruntime cannot load model.onnx: In Node, ({'long/' * 60}, Bucketize), Error No Op registered for Bucketize with"
STATE = """Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "b.bias". """


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(OPENVINO), "RuntimeError: No conversion rule found for operations: aten::linalg_svdvals"),
        (BadModel(ONNX), "No Op registered for Bucketize with"),
        (RuntimeError(STATE), 'RuntimeError: Missing key(s) in state_dict: "b.bias".'),
        (ValueError("it failed:\n\n  because"), "ValueError: it failed: because"),
        (KeyError(), "KeyError"),
    ],
)
def test_the_line_that_names_the_op_or_the_weight_is_the_one_told(error: Exception, line: str) -> None:
    assert root_cause(error) == line


def test_silencing_exporters_leaves_what_others_put_into_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "maybe")
    monkeypatch.delenv("NNCF_CI", raising=False)
    monkeypatch.delenv("SET_BY_ANOTHER_THREAD", raising=False)
    with quiet_exporters():
        os.environ["SET_BY_ANOTHER_THREAD"] = "1"
    assert os.environ.pop("SET_BY_ANOTHER_THREAD") == "1"
    assert os.environ["CI"] == "maybe"
    assert "NNCF_CI" not in os.environ
