"""The models of other services as a server sees them: a configuration that says what they take and give, and where they are."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from tensorferry.errors import BadModel
from tensorferry.serve.pipelines.definition import PipelineService
from tensorferry.serve.proto import inference as pb
from tensorferry.serve.runtimes.remote import FILENAME

_NUM_CONNECTIONS = 8  # that a server has to one model of another, at most
_SECONDS = 30.0
_MAX_NBYTES = 2**24


def ask_remote_models(service: str, url: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Files by name for each model of a running service, to put into the folder of one that calls it; raises BadModel."""
    found = {}
    for name in names:
        path = f"/v2/models/{urllib.parse.quote(name, safe='')}/config"
        try:
            with urllib.request.urlopen(f"{url}{path}", timeout=_SECONDS) as answer:
                config = json_format.ParseDict(json.loads(answer.read(_MAX_NBYTES)), pb.ModelConfig(), ignore_unknown_fields=True)
        except (OSError, ValueError, json_format.ParseError) as error:
            raise BadModel(f"service '{service}' does not tell what its model '{name}' takes: {error}") from None
        found[name] = {"config.pbtxt": _describe(config), f"1/{FILENAME}": json.dumps({"service": service, "model": name}) + "\n"}
    return found


def _describe(config: Any) -> str:
    if config.model_transaction_policy.decoupled or config.HasField("sequence_batching"):
        raise BadModel(f"model '{config.name}' streams answers or keeps state, so another service cannot call it")
    ours = pb.ModelConfig(name=config.name, backend="remote", max_batch_size=config.max_batch_size)
    ours.input.extend(config.input)
    ours.output.extend(config.output)
    for output in ours.output:
        output.ClearField("label_filename")  # the file stays with the model
    ours.instance_group.add(count=_NUM_CONNECTIONS, kind=pb.ModelInstanceGroup.KIND_CPU)
    text: str = text_format.MessageToString(ours)
    return text


def compose(service: PipelineService, remotes: dict[str, dict[str, dict[str, str]]], folder: Path) -> Path:
    """A folder with a service's own models, linked, and those that it calls; its own folder where it calls none."""
    if not remotes:
        return service.folder
    folder.mkdir()
    for model in service.folder.iterdir():
        if model.is_dir() and not model.name.startswith("."):
            (folder / model.name).symlink_to(model.resolve())
    written = {
        folder / name / file: text for found in remotes.values() for name, files in found.items() for file, text in files.items()
    }
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder
