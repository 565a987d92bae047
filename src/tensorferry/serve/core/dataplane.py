"""What the server can do, whatever protocol asks. REST and gRPC only translate to and from it.

`submit` is the way of every inference: it raises what is wrong with a request at once, and tells what became of it to a callback
on the event loop. The rest is metadata.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial

from tensorferry import __version__
from tensorferry.serve.core.classify import classify
from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.faults import RequestFault, Unavailable, as_fault
from tensorferry.serve.core.limits import INLINE_NBYTES
from tensorferry.serve.core.logs import LOGGER
from tensorferry.serve.core.mailbox import Mailbox
from tensorferry.serve.core.model import Model, Outputs, check_wanted
from tensorferry.serve.core.repository import Repository, VersionState
from tensorferry.serve.core.requests import Answer, InferRequest, InferResponse, OutputTensor, WantedOutput
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.settings import Settings
from tensorferry.serve.core.shared_memory import Regions
from tensorferry.serve.core.tensors import DATATYPES, Array, encode_bytes, held_nbytes
from tensorferry.serve.core.tracing import TraceExporter
from tensorferry.serve.sources import SourceFailed

NAME = "tensorferry"
EXTENSIONS = (
    "generate",
    "sequence",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
_LOG = logging.getLogger(LOGGER)
_MAX_TRIES = 3  # a model may be swapped between looking it up and queueing


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who answers."""

    name: str = NAME
    version: str = __version__
    extensions: tuple[str, ...] = EXTENSIONS


class DataPlane:
    """One server's models, regions and settings. Its methods are called on the event loop, except where they say so."""

    def __init__(
        self,
        repository: Repository,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        deferred: DeferredCalls,
        *,
        allows_control: bool,
        max_under_way: int = 0,
        regions: Regions | None = None,
        traces: TraceExporter | None = None,
    ) -> None:
        self.repository = repository
        self.settings = settings
        self.allows_control = allows_control
        self.max_under_way = max_under_way
        self.regions = regions or Regions()
        self.traces = traces
        self.mailbox = Mailbox(loop, deferred)
        self.num_under_way = 0
        self.is_draining = False
        has_regions = self.regions.prefix is not None
        extensions = EXTENSIONS if has_regions else tuple(name for name in EXTENSIONS if name != "system_shared_memory")
        self.metadata = ServerMetadata(extensions=extensions)

    @property
    def is_ready(self) -> bool:
        """Whether every model has been tried once and no shutdown has begun."""
        return self.repository.has_started and not self.is_draining

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether the model would take a request now."""
        try:
            return not self.is_draining and self.find(name, version).is_ready
        except RequestFault:
            return False

    def find(self, name: str, version: str) -> Model:
        """The loaded model; raises NotFound or Unavailable."""
        return self.repository.find(name, version)

    def find_for_statistics(self, name: str, version: str) -> list[Model]:
        """The loaded models that statistics are asked of: one version, all of a name, or all."""
        if not name:
            return self.repository.models()
        found = [self.find(name, version)]
        return found if version else [model for model in self.repository.models() if model.name == name]

    def index(self, ready_only: bool) -> list[VersionState]:
        """The repository's index."""
        return self.repository.index(ready_only)

    async def load(self, name: str, config: str, files: dict[str, bytes]) -> None:
        """Load or reload a model in the background; what serves goes on serving."""
        self._check_control()
        await asyncio.to_thread(self._load, name, config, files)

    async def unload(self, name: str, with_parts: bool) -> None:
        """Take a model out of service."""
        self._check_control()
        await asyncio.to_thread(self.repository.unload, name, with_parts)

    def submit(self, request: InferRequest, answer: Answer, *, at_once: bool = False) -> InferRequest:
        """Start an inference; `answer` is called on the event loop, once, unless the request is cancelled.

        It is called after this has returned; or before, where the caller lets that be: `at_once`.
        """
        if self.traces is not None:
            return self._submit_traced(self.traces, request, answer, at_once)
        return self._submit(request, answer, at_once=at_once)

    def _submit(self, request: InferRequest, answer: Answer, *, at_once: bool = False) -> InferRequest:
        if self.max_under_way and self.num_under_way >= self.max_under_way:
            raise Unavailable(f"{self.num_under_way} requests are under way, which is the most this server takes")
        for _ in range(_MAX_TRIES):
            model = self.find(request.model_name, request.model_version)
            check_wanted(model, request.wanted)
            outcome = model.run_alone(request.inputs) if at_once else None
            self._begin(request, model, answer)
            if outcome is not None:
                self._finish((request, outcome))
                return request
            try:
                ticket = model.submit(request.inputs, request.options, partial(self._arrive, request))
            except BaseException as error:
                request.end()
                self.num_under_way -= 1
                if isinstance(error, Closed):
                    continue
                raise
            if request.answer is not None:
                request.ticket = ticket
            return request
        raise Unavailable(f"model '{request.model_name}' was swapped {_MAX_TRIES} times while a request came")

    def _submit_traced(self, traces: TraceExporter, request: InferRequest, answer: Answer, at_once: bool) -> InferRequest:
        """Start an inference and have what it goes through exported, if it is sampled."""
        trace = traces.begin(request.trace, request.model_name)
        if trace is None:
            return self._submit(request, answer, at_once=at_once)
        request.options = replace(request.options, trace=trace)

        def tell(outcome: InferResponse | RequestFault) -> None:
            traces.finish(trace, outcome if isinstance(outcome, RequestFault) else None)
            answer(outcome)

        try:
            return self._submit(request, tell)  # through the queue, however quick the model is
        except RequestFault as fault:
            traces.finish(trace, fault)
            raise

    async def infer(self, request: InferRequest) -> InferResponse:
        """The same for coroutines; cancelling the coroutine cancels the request."""
        future: asyncio.Future[InferResponse | RequestFault] = asyncio.get_running_loop().create_future()
        self.submit(request, lambda outcome: None if future.done() else future.set_result(outcome))
        try:
            outcome = await future
        except asyncio.CancelledError:
            request.cancel()
            raise
        if isinstance(outcome, RequestFault):
            raise outcome
        return outcome

    def _load(self, name: str, config: str, files: dict[str, bytes]) -> None:
        try:
            if not files:
                self.repository.refresh([name])
        except SourceFailed as fault:  # its text would tell clients where the models are
            _LOG.error("model '%s' cannot be loaded: %s", name, fault)
            raise Unavailable("the source of the models cannot be read now; the server's log says why") from None
        self.repository.load(name, config, files)

    def _check_control(self) -> None:
        if not self.allows_control:
            raise Unavailable("explicit model load / unload is not allowed; start with --model-control-mode explicit")

    # ---- a request on its way ----------------------------------------------------------------------------------------

    def _begin(self, request: InferRequest, model: Model, answer: Answer) -> None:
        self.num_under_way += 1
        request.model = model
        request.answer = answer
        request.on_cancel = self._count_down

    def _arrive(self, request: InferRequest, outcome: Outputs | RequestFault) -> None:
        """Called by the model, from any thread."""
        self.mailbox.post(self._finish, (request, outcome))

    def _finish(self, told: tuple[InferRequest, Outputs | RequestFault]) -> None:
        """Make the answer, on the loop."""
        request, outcome = told
        answer, model = request.answer, request.model
        if answer is None:
            return
        assert model is not None
        request.end()
        self.num_under_way -= 1
        if isinstance(outcome, RequestFault):
            answer(outcome)
            return
        charge = request.charge
        try:
            if charge is not None:
                request.inputs = {}  # the answer may wait for long, and needs them no more
                charge.exchange(held_nbytes(outcome.values()))
            if request.wanted and _is_slow(request.wanted, outcome):
                self._respond_later(model, request, outcome, answer)
                return
            response = self._respond(model, request, outcome)
        except Exception as error:
            answer(as_fault(error))
            return
        answer(response)

    def _count_down(self) -> None:
        self.num_under_way -= 1

    def _respond_later(self, model: Model, request: InferRequest, outcome: Outputs, answer: Answer) -> None:
        """Sorting many values into classes, or writing them to shared memory, takes too long for the loop."""

        def make() -> None:
            try:
                made: InferResponse | RequestFault = self._respond(model, request, outcome)
            except Exception as error:
                made = as_fault(error)
            self.mailbox.post(answer, made)

        asyncio.get_running_loop().run_in_executor(None, make)

    def _respond(self, model: Model, request: InferRequest, outputs: Outputs) -> InferResponse:
        if request.wanted:
            tensors = [self._make(model, want, outputs[want.name]) for want in request.wanted]
        else:
            tensors = [OutputTensor(spec.name, spec.datatype, outputs[spec.name]) for spec in model.spec.outputs]
        return InferResponse(model.name, str(model.version), request.id, tensors)

    def _make(self, model: Model, want: WantedOutput, array: Array) -> OutputTensor:
        if want.num_classes:
            spec = next(spec for spec in model.spec.outputs if spec.name == want.name)
            array = classify(spec, array, want.num_classes, model.spec.is_batched)
        if want.target is None:
            return OutputTensor(want.name, DATATYPES[array.dtype], array)
        data = encode_bytes(array)
        self.regions.write(want.target, data)
        return OutputTensor(want.name, DATATYPES[array.dtype], array, want.target, len(data))


def _is_slow(wanted: tuple[WantedOutput, ...], outcome: Outputs) -> bool:
    is_more = any(want.num_classes or want.target is not None for want in wanted)
    return is_more and sum(array.size for array in outcome.values()) > INLINE_NBYTES
