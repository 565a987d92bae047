"""Manifests through the models of their makers and back, in a Python that has `kserve` or `kubeflow_trainer_api`.

Reads {"kind": ..., ...} objects as a JSON list and prints what each became. These models drop fields that they do not know
without a word, so what comes back has to be equal.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

_TRAINER = {"TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"}
_KSERVE = {"InferenceService": "V1beta1InferenceService", "ServingRuntime": "V1alpha1ServingRuntime"}


def main() -> None:
    """Convert what comes in."""
    print(json.dumps([_convert(body) for body in json.load(sys.stdin)]))


def _convert(body: dict[str, Any]) -> Any:
    if body["kind"] in _TRAINER:
        from kubeflow_trainer_api import models

        return getattr(models, f"TrainerV1alpha1{body['kind']}").from_dict(body).to_dict()
    from kserve import ApiClient

    client = ApiClient()
    found = client.deserialize(SimpleNamespace(data=json.dumps(body)), _KSERVE[body["kind"]])
    return client.sanitize_for_serialization(found)


if __name__ == "__main__":
    main()
