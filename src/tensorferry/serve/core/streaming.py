"""A request that gets any number of answers, from the data plane through a model and back.

A model makes no more answers than its client has room for: it begins with `WINDOW` of them, and gets room for more as they are
read. So a client that does not read makes the server hold that many, each charged to the budget of bytes from when it comes.
"""

import asyncio
from collections import deque
from dataclasses import replace

from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import InvalidRequest, MemoryFull, RequestFault, Unavailable
from tensorferry.serve.core.memory import Charge, MemoryBudget
from tensorferry.serve.core.model import Model, Outputs, StreamTicket, check_wanted
from tensorferry.serve.core.requests import InferRequest, InferResponse, OutputTensor, Ticket
from tensorferry.serve.core.scheduler import Closed
from tensorferry.serve.core.tensors import DATATYPES, held_nbytes
from tensorferry.serve.core.tracing import RequestTrace

Response = InferResponse | RequestFault | None
WINDOW = 16  # answers of a stream that may wait to be read
_MAX_TRIES = 3  # a model may be swapped between looking it up and queueing


class AnswerStream:
    """One request on its way; `start`, `read` and `cancel` are called on the event loop."""

    def __init__(self, plane: DataPlane, request: InferRequest, charge: Charge, writer: "AnswerWriter") -> None:
        self.plane = plane
        self.request = request
        self.charge = charge
        self.writer = writer
        self.model: Model | None = None
        self.ticket: Ticket | None = None
        self.num_read = 0
        self.num_unread = 0
        self.is_over = False
        self.trace: RequestTrace | None = None

    def start(self) -> None:
        """Submit the request; raises what is wrong with it."""
        plane, request = self.plane, self.request
        if plane.traces is not None:
            self.trace = plane.traces.begin(request.trace, request.model_name)
            request.options = replace(request.options, trace=self.trace)
        try:
            self._start()
        except RequestFault as fault:
            self._end_trace(fault)
            raise

    def _start(self) -> None:
        plane, request = self.plane, self.request
        if plane.max_under_way and plane.num_under_way >= plane.max_under_way:
            raise Unavailable(f"{plane.num_under_way} requests are under way, which is the most this server takes")
        if any(want.num_classes or want.target is not None for want in request.wanted):
            raise InvalidRequest("a stream of answers has neither classifications nor outputs in shared memory")
        try:
            self.charge.add(held_nbytes(request.inputs.values()))
            self._submit()
        except BaseException:
            self.charge.close()
            raise
        plane.num_under_way += 1

    # ---- from the model, in any thread -------------------------------------------------------------------------------

    def tell(self, outcome: Outputs | RequestFault | None, is_last: bool) -> None:
        """One answer, the end, or both."""
        if outcome is not None and not isinstance(outcome, RequestFault):
            try:
                self.charge.add(held_nbytes(outcome.values()))
            except MemoryFull as fault:
                self.plane.mailbox.post(self._give_up, fault)
                return
        self.plane.mailbox.post(self._take, (outcome, is_last))

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def read(self) -> None:
        """All answers that were taken so far have gone: there is room for as many more."""
        if self.is_over or not self.num_unread:
            return
        self.charge.release()
        self.num_read += self.num_unread
        self.num_unread = 0
        if self.num_read >= WINDOW // 2 and isinstance(self.ticket, StreamTicket):
            self.ticket.welcome(self.num_read)
            self.num_read = 0

    def cancel(self) -> None:
        """The client has gone."""
        if self.is_over:
            return
        ticket = self.ticket
        self._close()
        if ticket is not None:
            ticket.cancel()

    def _submit(self) -> None:
        request = self.request
        for _ in range(_MAX_TRIES):
            model = self.model = self.plane.find(request.model_name, request.model_version)
            check_wanted(model, request.wanted)
            try:
                if model.is_decoupled:
                    self.ticket = model.stream(request.inputs, request.options, self, WINDOW)
                else:
                    self.ticket = model.submit(request.inputs, request.options, lambda outcome: self.tell(outcome, True))
            except Closed:
                continue
            return
        raise Unavailable(f"model '{request.model_name}' was swapped {_MAX_TRIES} times while a request came")

    def _take(self, told: tuple[Outputs | RequestFault | None, bool]) -> None:
        outcome, is_last = told
        if self.is_over:
            return
        writer = self.writer
        self.num_unread += outcome is not None
        response = self._respond(outcome) if isinstance(outcome, dict) else outcome
        if is_last:
            self._end_trace(outcome if isinstance(outcome, RequestFault) else None)
            self._close()
        writer.take(response, is_last)

    def _respond(self, outputs: Outputs) -> InferResponse:
        assert self.model is not None
        self.request.inputs = {}  # the answers may take long, and need them no more
        wanted = {want.name for want in self.request.wanted} or outputs.keys()
        tensors = [OutputTensor(name, DATATYPES[array.dtype], array) for name, array in outputs.items() if name in wanted]
        return InferResponse(self.model.name, str(self.model.version), self.request.id, tensors)

    def _give_up(self, fault: MemoryFull) -> None:
        if not self.is_over:
            self.cancel()
            self.writer.take(fault, True)

    def _end_trace(self, fault: RequestFault | None) -> None:
        if self.trace is not None and self.plane.traces is not None:
            self.plane.traces.finish(self.trace, fault)
            self.trace = None

    def _close(self) -> None:
        self.is_over = True
        self.ticket = None
        self.plane.num_under_way -= 1
        self.charge.close()


class AnswerWriter:
    """Writes answers to a client in their order, in a thread what takes long to write; everything else is on the event loop."""

    def __init__(self, plane: DataPlane, request: InferRequest, budget: MemoryBudget) -> None:
        self.answers = AnswerStream(plane, request, Charge(budget), self)
        self.waiting: deque[tuple[Response, bool]] = deque()  # behind one that takes long to write
        self.work: asyncio.Task[None] | None = None

    def take(self, response: Response, is_last: bool) -> None:
        """One answer, the end, or both."""
        if self.work is None and (not isinstance(response, InferResponse) or response.is_quick_to_write(self.is_binary)):
            self.send(self.write(response, is_last) if isinstance(response, InferResponse) else response, is_last)
            return
        self.waiting.append((response, is_last))
        if self.work is None:
            self.work = asyncio.get_running_loop().create_task(self._write_waiting())

    def cancel(self) -> None:
        """The client has gone."""
        self.waiting.clear()
        self.answers.cancel()

    def is_binary(self, name: str) -> bool:
        """Whether an output goes as bytes."""
        raise NotImplementedError

    def write(self, response: InferResponse, is_last: bool) -> bytes | RequestFault:
        """The bytes of an answer; maybe in a thread."""
        raise NotImplementedError

    def send(self, answer: bytes | RequestFault | None, is_last: bool) -> None:
        """Send one answer, the end, or both; then `answers.read()`, as soon as the client has room for more."""
        raise NotImplementedError

    async def _write_waiting(self) -> None:
        while self.waiting:
            response, is_last = self.waiting.popleft()
            if isinstance(response, InferResponse):
                self.send(await asyncio.to_thread(self.write, response, is_last), is_last)
            else:
                self.send(response, is_last)
        self.work = None
