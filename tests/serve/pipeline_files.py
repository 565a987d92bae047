"""A small pipeline: `front` doubles and lets `back` triple what comes, in one ensemble called `six`; and pipelines that run."""

from pathlib import Path
from typing import Any

import yaml
from models import save_scale
from running import RunningServer

_TRIPLE = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
"""
_SIX = """
platform: "ensemble"
max_batch_size: 8
input {{ name: "IN" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: 4 }}
ensemble_scheduling {{
  step {{ model_name: "double" input_map {{ key: "x" value: "IN" }} output_map {{ key: "y" value: "{made}" }} }}
  step {{ model_name: "{second}" input_map {{ key: "x" value: "{read}" }} output_map {{ key: "y" value: "OUT" }} }}
}}
"""


def write_pipeline(
    folder: Path, *, second: str = "triple", read: str = "middle", made: str = "middle", **changes: dict[str, Any] | None
) -> Path:
    """The file, beside its folders of models; `changes` are to its services, None takes one away."""
    save_scale(folder / "front", "double", 2.0)
    save_scale(folder / "back", "triple", 3.0)
    (folder / "back" / "triple" / "labels.txt").write_text("a\nb\nc\nd\n")
    (folder / "back" / "triple" / "config.pbtxt").write_text(_TRIPLE)
    (folder / "front" / "six").mkdir()
    (folder / "front" / "six" / "config.pbtxt").write_text(_SIX.format(second=second, read=read, made=made))
    services: dict[str, Any] = {"front": {"models": "front", "calls": ["back"]}, "back": {"models": "back", "replicas": 3}}
    services = {name: value for name, value in (services | changes).items() if value is not None}
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"name": "assistant", "entry": "front", "services": services}))
    return path


class RunningPipeline(RunningServer):
    """`ferry serve pipeline.yaml`, whose lines begin with the name of a service."""

    def __init__(self, path: Path, *options: str, entry: str = "front") -> None:
        self.entry = entry
        super().__init__(path, *options)

    def wait_for(self, text: str, seconds: float = 60) -> dict[str, Any]:
        """The next line of the entry that has `text` in it."""
        while True:
            line = super().wait_for(text, seconds)
            if f"[{self.entry}]" in line["message"]:
                return line | {"message": line["message"].partition('"message":')[2].partition('"')[2].partition('"')[0]}
