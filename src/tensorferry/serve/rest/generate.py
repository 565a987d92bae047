"""The generate extension: flat JSON in, flat JSON out, once or as a stream of server-sent events.

Keys of the request that are inputs of the model become tensors, at the top or below `parameters`; other keys are parameters.
"""

import math
from typing import Any

import numpy as np
import orjson

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import InvalidRequest, ModelFault, RequestFault, as_fault
from tensorferry.serve.core.memory import Charge
from tensorferry.serve.core.requests import InferRequest, InferResponse, OutputTensor, read_options
from tensorferry.serve.core.spec import ModelSpec, TensorSpec
from tensorferry.serve.core.streaming import AnswerWriter
from tensorferry.serve.core.tensors import Array, decode_json, encode_json
from tensorferry.serve.rest.exchange import Exchange
from tensorferry.serve.rest.json_body import check_json, read_json

_JSON = b"content-type: application/json\r\n"
_EVENTS = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"


def read_generate(name: str, version: str, body: bytes, spec: ModelSpec, charge: Charge) -> InferRequest:
    """The request of a flat JSON object."""
    nbytes = check_json(body)
    charge.add(nbytes)
    found = read_json(body)
    request_id = found.pop("id", "")
    if not isinstance(request_id, str):
        raise InvalidRequest("the request 'id' must be text")
    nested = found.pop("parameters", None)
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise InvalidRequest("'parameters' must be an object")
    both = sorted(found.keys() & nested.keys())
    if both:
        raise InvalidRequest(f"'{both[0]}' came twice: beside 'parameters', and in them")
    values = nested | found
    inputs = {key: _read_input(spec.by_name[key], value, spec.is_batched) for key, value in values.items() if key in spec.by_name}
    parameters = {key: value for key, value in values.items() if key not in spec.by_name}
    for key, value in parameters.items():
        if not isinstance(value, str | bool | int | float):
            known = ", ".join(repr(tensor.name) for tensor in spec.inputs)
            raise InvalidRequest(f"'{key}' is no input of model '{name}' ({known}), and no text, number or truth value either")
    charge.add(-nbytes)
    return InferRequest(name, version, inputs, id=request_id, options=read_options(parameters, request_id))


def write_answer(response: InferResponse) -> bytes:
    """An answer as a flat JSON object: one element stands by itself, several as a list."""
    answer: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        answer["id"] = response.id
    for output in response.outputs:
        answer[output.name] = _write_output(output)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


class Generation(AnswerWriter):
    """One call of generate or generate_stream."""

    def __init__(self, plane: DataPlane, request: InferRequest, exchange: Exchange) -> None:
        super().__init__(plane, request, exchange.charge.budget)
        self.exchange = exchange
        exchange.ticket = self
        self.answers.start()

    def is_binary(self, name: str) -> bool:
        """Everything goes as JSON."""
        _ = name
        return False

    def write(self, response: InferResponse, is_last: bool) -> bytes | RequestFault:
        """The JSON of an answer."""
        _ = is_last
        try:
            return write_answer(response)
        except Exception as error:
            return as_fault(error)

    def fail(self, fault: RequestFault) -> None:
        """End the request with an error."""
        self.answers.cancel()
        self.exchange.respond(*self.exchange.connection.app.explain(fault))


class OneGeneration(Generation):
    """generate: exactly one answer."""

    answer: bytes | None = None

    def send(self, answer: bytes | RequestFault | None, is_last: bool) -> None:
        """Keep the answer until nothing else comes."""
        if isinstance(answer, RequestFault):
            self.fail(answer)
            return
        if answer is not None and self.answer is not None:
            self.fail(InvalidRequest("the model gave more than one answer; use generate_stream"))
            return
        self.answer = answer or self.answer
        if not is_last:
            self.answers.read()
        elif self.answer is None:
            self.fail(ModelFault("the model gave no answer; use generate_stream"))
        else:
            self.exchange.respond(200, _JSON, [self.answer])


class EventGeneration(Generation):
    """generate_stream: any number of answers, each an event as soon as it is there."""

    has_begun = False

    def send(self, answer: bytes | RequestFault | None, is_last: bool) -> None:
        """One event; an error before the first of them is the answer of the whole request."""
        exchange = self.exchange
        if isinstance(answer, RequestFault):
            if not self.has_begun:
                self.fail(answer)
                return
            answer = orjson.dumps({"error": str(answer)})
        if not self.has_begun:
            self.has_begun = True
            exchange.begin(200, _EVENTS, self.answers.read)
        if answer is not None:
            exchange.write(b"data: %s\n\n" % answer)
        if is_last:
            exchange.finish()
        elif not exchange.connection.is_paused:
            self.answers.read()


def _read_input(spec: TensorSpec, value: Any, is_batched: bool) -> Array:
    """An input of one row; its shape is that of the lists, or the model's where that leaves no choice."""
    data, shape = (value, list(_shape_of(value))) if isinstance(value, list) else ([value], [1])
    dims = spec.shape[is_batched:]
    num_elements = math.prod(shape)
    if -1 not in dims and math.prod(dims) == num_elements:
        shape = list(dims)
    elif dims.count(-1) == 1 and len(shape) != len(dims):
        num_known = math.prod(size for size in dims if size != -1)
        if num_known and num_elements % num_known == 0:
            shape = [num_elements // num_known if size == -1 else size for size in dims]
    return decode_json(spec.datatype, (1, *shape) if is_batched else tuple(shape), data, spec.name)


def _shape_of(value: Any) -> tuple[int, ...]:
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def _write_output(output: OutputTensor) -> Any:
    values = encode_json(output.array, output.name)
    if output.array.size != 1:
        return values
    return values[0].item() if isinstance(values, np.ndarray) else values[0] if isinstance(values, list) else values
