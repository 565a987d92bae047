"""Manifests through the models of their makers and back, in a Python that has `kubernetes`, `kserve` or `kubeflow_trainer_api`.

Reads {"kind": ..., ...} objects as a JSON list and prints what each became. These models drop fields that they do not know
without a word, so what comes back has to be equal.
"""

import json
import re
import sys
from typing import Any

_TRAINER = {
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "JobSet": "JobsetV1alpha2JobSet",
}
_KSERVE = {"InferenceService": "V1beta1InferenceService", "ServingRuntime": "V1alpha1ServingRuntime"}


def main() -> None:
    """Convert what comes in."""
    print(json.dumps([_convert(body) for body in json.load(sys.stdin)]))


def _convert(body: dict[str, Any]) -> Any:
    if body["kind"] in _TRAINER:
        from kubeflow_trainer_api import models

        return getattr(models, _TRAINER[body["kind"]]).from_dict(body).to_dict()
    if body["kind"] not in _KSERVE:
        from kubernetes import client

        version = body["apiVersion"].rpartition("/")[2]
        return client.ApiClient().sanitize_for_serialization(_build(body, f"{version.capitalize()}{body['kind']}"))
    from kserve import ApiClient

    return ApiClient().sanitize_for_serialization(_build(body, _KSERVE[body["kind"]]))


def _build(value: Any, kind: str) -> Any:
    """What their client would read; it stumbles over types that their own models write as Dict[str, str]."""
    from kubernetes import client as kubernetes

    if found := re.fullmatch(r"[Dd]ict[\[(]\w+, (.+)[\])]", kind):
        return {key: _build(each, found[1]) for key, each in value.items()}
    if found := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        return [_build(each, found[1]) for each in value]
    model = getattr(kubernetes, kind, None) or _find_of_kserve(kind)
    if model is None:
        return value
    names = model.attribute_map
    known = {name: _build(value[key], model.openapi_types[name]) for name, key in names.items() if key in value}
    return model(**known)


def _find_of_kserve(kind: str) -> Any:
    """KServe is only there for its own kinds, and takes seconds to load."""
    if not kind.startswith(("V1beta1", "V1alpha1")):
        return None
    import kserve.models

    return getattr(kserve.models, kind, None)


if __name__ == "__main__":
    main()
