"""What is told of an exporter's error: one line, and in it the op or the weight."""

import pytest

from tensorferry.errors import BadModel
from tensorferry.inference.source import root_cause

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
