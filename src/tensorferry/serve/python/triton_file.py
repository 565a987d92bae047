"""A class `TritonPythonModel` as the worker runs it: initialize, execute, finalize."""

import asyncio
import inspect
import json
from collections.abc import Sequence
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.serve.python import triton
from tensorferry.serve.python.api import Answer, Context, Request


class TritonFile:
    """One class made for Triton."""

    def __init__(self, kind: Any, answer: Answer) -> None:
        self.kind = kind
        self.answer = answer
        self.model: Any = None
        self.context: Context | None = None
        self.output_names: list[str] = []
        self.is_decoupled = False
        if not callable(getattr(kind, "execute", None)):
            raise BadModel("the class TritonPythonModel has no method execute(self, requests)")

    def declare(self, config: dict[str, Any]) -> dict[str, Any]:
        """What `auto_complete_config` makes of the configuration."""
        if not hasattr(self.kind, "auto_complete_config"):
            return {}
        completed = self.kind.auto_complete_config(triton.ModelConfig(config))
        return {} if completed is None else completed.as_dict()

    def load(self, context: Context) -> None:
        """Make the object and initialize it with what Triton would tell it."""
        triton.set_context(context)
        self.context = context
        self.output_names = [output["name"] for output in context.config["output"]]
        self.is_decoupled = triton.using_decoupled_model_transaction_policy(context.config)
        self.model = self.kind()
        if hasattr(self.model, "initialize"):
            self.model.initialize(
                {
                    "model_config": json.dumps(context.config),
                    "model_instance_kind": "CPU",
                    "model_instance_name": context.name,
                    "model_instance_device_id": "0",
                    "model_repository": str(context.folder.parent),
                    "model_version": str(context.version),
                    "model_name": context.name,
                }
            )

    def infer(self, requests: list[Request]) -> Sequence[Any]:
        """The answers; None for those that come through a response sender."""
        assert self.context is not None
        name, version = self.context.name, self.context.version
        wrapped = [triton.wrap_request(self.answer, each, self.output_names, name, version) for each in requests]
        responses = self.model.execute(wrapped)
        if inspect.isawaitable(responses):
            responses = asyncio.run(_wait_for(responses))
        if responses is None and self.is_decoupled:
            return [None] * len(requests)
        if not isinstance(responses, Sequence):
            raise TypeError(f"execute gave {type(responses).__name__}, expected a list with a response for every request")
        may_be_none = {number for number, each in enumerate(requests) if each.comes_again}
        return [
            None if response is None and number in may_be_none else _outcome_of(response)
            for number, response in enumerate(responses)
        ]

    def forget(self, sequence_id: int | str) -> None:
        """Triton's files are not told."""

    def unload(self) -> None:
        """Finalize the object."""
        if hasattr(self.model, "finalize"):
            self.model.finalize()


async def _wait_for(responses: Any) -> Any:
    return await responses


def _outcome_of(response: Any) -> Any:
    if not isinstance(response, triton.InferenceResponse):
        raise TypeError(f"execute gave {type(response).__name__} for a request, expected an InferenceResponse")
    return response.as_outcome()
