"""Models written in Python, as small as they can be."""

from pathlib import Path

DOUBLE = """
class Model:
    inputs = {"x": ("FP32", [4])}
    outputs = {"y": ("FP32", [4]), "rows": ("INT32", [1])}
    max_batch_size = 8

    def infer(self, requests):
        return [{"y": 2 * request["x"], "rows": [[len(requests)]] * len(request["x"])} for request in requests]
"""

# "die", "hang" and the like are what a worker is made to do; everything else is echoed
ODD = """
import os, signal, sys, time
from tensorferry.serve.python import InvalidRequest

class Model:
    inputs = {"WHAT": ("BYTES", [1])}
    outputs = {"WHAT": ("BYTES", [1])}

    def infer(self, requests):
        return [self.do(request["WHAT"][0].decode()) for request in requests]

    def do(self, what):
        match what:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                time.sleep(1000)
            case "refuse":
                return InvalidRequest("not that")
            case "raise":
                raise ValueError("no")
            case "forget":
                return {}
            case "invent":
                return {"WHY": ["x"]}
            case "number":
                return {"WHAT": [1.5]}
            case "iterate":
                return iter([])
            case "process":
                return {"WHAT": [str(os.getpid())]}
        return {"WHAT": [what]}
"""

# counts to the given number, or for ever; "made" and "closed" tell what became of earlier streams
COUNT = """
import time

class Model:
    inputs = {"TO": ("INT32", [1]), "WAIT": ("FP32", [1])}
    outputs = {"NUMBER": ("INT32", [-1])}
    decoupled = True

    def load(self, context):
        self.made = self.closed = 0

    def infer(self, requests):
        return [
            self.count(int(request["TO"][0]), float(request["WAIT"][0]), request.parameters.get("size", 1))
            for request in requests
        ]

    def count(self, to, wait, size):
        if to in (-1, -2):
            yield {"NUMBER": [self.made if to == -1 else self.closed]}
            return
        if to == -3:
            raise ValueError("cannot count to that")
        number = 0
        try:
            while to == 0 or number < to:
                time.sleep(wait)
                self.made += 1
                yield {"NUMBER": [number] * size}
                number += 1
        finally:
            self.closed += 1
"""

# adds up what comes, starts again where told to, and tells what else it was told
ACCUMULATE = """
import os

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"sum": ("INT32", [1]), "process": ("INT32", [1])}
    max_batch_size = 4

    def load(self, context):
        self.sums = {}

    def infer(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        key = request.sequence_id
        if request["x"][0, 0] == -1:
            os._exit(1)
        if request["x"][0, 0] == -2:
            return {"sum": [[len(self.sums)]], "process": [[os.getpid()]]}
        if request.sequence_start:
            self.sums[key] = 0
        self.sums[key] += int(request["x"][0, 0])
        found = self.sums[key]
        if request.sequence_end:
            del self.sums[key]
        return {"sum": [[found]], "process": [[os.getpid()]]}

    def forget(self, sequence_id):
        self.sums.pop(sequence_id, None)
"""

# counts down, a step each time that it sees a request; ROWS tells how many it saw together
COUNT_DOWN = """
class Model:
    inputs = {"FROM": ("INT32", [1])}
    outputs = {"LEFT": ("INT32", [1]), "ROWS": ("INT32", [1])}
    max_batch_size = 4

    def load(self, context):
        self.left = {}
        self.decoupled = context.config.get("model_transaction_policy", {}).get("decoupled", False)

    def infer(self, requests):
        return [self.step(request, len(requests)) for request in requests]

    def step(self, request, rows):
        key = request.sequence_id
        if request["FROM"][0, 0] == -1:
            return {"LEFT": [[len(self.left)]], "ROWS": [[rows]]}
        if request.sequence_start:
            self.left[key] = int(request["FROM"][0, 0])
        self.left[key] -= 1
        left = self.left[key]
        request.comes_again = left > 0
        if not request.comes_again:
            del self.left[key]
        elif not self.decoupled:
            return None
        return {"LEFT": [[left]], "ROWS": [[rows]]}

    def forget(self, sequence_id):
        self.left.pop(sequence_id, None)
"""

CALLER = """
import numpy as np

class Model:
    inputs = {"x": ("FP32", [4])}
    outputs = {"y": ("FP32", [4])}
    max_batch_size = 1

    def load(self, context):
        self.context = context
        self.called = context.parameters["called"]

    def infer(self, requests):
        if self.called == "count":
            inputs = {"TO": np.array([3], np.int32), "WAIT": np.zeros(1, np.float32)}
            numbers = [outputs["NUMBER"][0] for outputs in self.context.stream("count", inputs)]
            return [{"y": [[*numbers, len(numbers)]]} for _ in requests]
        return [{"y": self.context.infer(self.called, {"x": request["x"]})["y"]} for request in requests]
"""

# as Triton would have it: a decoupled model that answers from a thread, and calls another
TRITON = """
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(config)
        self.dtype = pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, "y")["data_type"])

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        for row in x:
            called = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", row[None])]
            ).exec()
            y = pb_utils.get_output_tensor_by_name(called, "y").as_numpy()[0].astype(self.dtype)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        missing = pb_utils.InferenceRequest(model_name="nobody", inputs=[]).exec()
        sender.send(pb_utils.InferenceResponse(error=missing.error()), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        pass
"""
TRITON_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


def save_python(repository: Path, name: str, code: str, config: str = "") -> Path:
    """A model of this code."""
    path = repository / name / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    if config:
        (repository / name / "config.pbtxt").write_text(config)
    return path


def parameter(key: str, value: str) -> str:
    """A parameter as a configuration has it."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
