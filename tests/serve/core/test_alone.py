"""Requests that come one at a time to a quick model: answered as they come, and as they always are."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from models import save_lookup, save_scale, write_config

from tensorferry.serve.core import scheduler
from tensorferry.serve.core.dataplane import DataPlane
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.requests import InferRequest, InferResponse
from tensorferry.serve.options import ServeOptions
from tensorferry.serve.server import Server

X = np.arange(4, dtype=np.float32).reshape(1, 4)
_LONG = 1000  # as after many quick requests that came one at a time
_EVER = 10**15  # nanoseconds: however slow this machine is now, its models count as quick


def run(root: Path, test: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
    """Run `test` beside a server whose models count as quick."""

    async def main() -> None:
        server = Server(ServeOptions(repository=root, http_port=0, grpc_port=None))
        await server.start()
        while not server.plane.is_ready:
            await asyncio.sleep(0.01)
        for model in server.repository.models():
            model.scheduler.num_quick = model.scheduler.num_alone = _LONG
        try:
            await test(server)
        finally:
            await server.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_QUICK_NANOSECONDS", _EVER)
        asyncio.run(main())


class Asked:
    """Requests, and whether their answers came before `submit` returned."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.answers: list[Any] = []
        self.were_at_once: list[bool] = []

    def submit(self, name: str, x: np.ndarray, *, at_once: bool = True) -> None:
        num_before = len(self.answers)
        self.plane.submit(InferRequest(name, "", {"x": x}), self.answers.append, at_once=at_once)
        self.were_at_once.append(len(self.answers) > num_before)

    async def wait(self) -> None:
        while len(self.answers) < len(self.were_at_once):
            await asyncio.sleep(0.001)


def test_a_request_a_turn_is_answered_at_once_and_a_second_one_waits_for_company(tmp_path: Path) -> None:
    save_scale(tmp_path, "model", 2.0)

    async def test(server: Server) -> None:
        asked = Asked(server.plane)
        model = server.repository.find("model", "")
        asked.submit("model", X)
        await asyncio.sleep(0)
        asked.submit("model", 2 * X)
        asked.submit("model", 3 * X)
        assert model.scheduler.num_alone == 0
        asked.submit("model", 4 * X)
        await asked.wait()
        assert asked.were_at_once == [True, True, False, False]
        for number, answer in enumerate(asked.answers, 1):
            assert isinstance(answer, InferResponse)
            np.testing.assert_array_equal(answer.outputs[0].array, 2 * number * X)
        stats = model.stats
        assert (stats.success.count, stats.inference_count, stats.queue.count, stats.batches[1].compute_infer.count) == (
            4,
            4,
            4,
            2,
        )
        assert sum(stats.latency.counts) == 4
        assert server.plane.num_under_way == 0

    run(tmp_path, test)


def test_nothing_is_answered_at_once_where_the_caller_or_the_model_cannot_have_it(tmp_path: Path) -> None:
    save_scale(tmp_path, "model", 2.0)
    save_scale(tmp_path, "patient", 2.0)
    write_config(tmp_path, "patient", "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 1000 }")

    async def test(server: Server) -> None:
        asked = Asked(server.plane)
        asked.submit("model", X, at_once=False)
        asked.submit("patient", X)
        await asked.wait()
        assert asked.were_at_once == [False, False]

    run(tmp_path, test)


def test_a_request_that_fails_at_once_is_told_so_and_counted(tmp_path: Path) -> None:
    save_lookup(tmp_path, "lookup")

    async def test(server: Server) -> None:
        asked = Asked(server.plane)
        asked.submit("lookup", np.array([99]))
        await asyncio.sleep(0)
        asked.submit("lookup", np.array([1]))
        assert asked.were_at_once == [True, True]
        assert isinstance(asked.answers[0], InvalidRequest)
        assert isinstance(asked.answers[1], InferResponse)
        stats = server.repository.find("lookup", "").stats
        assert (stats.fail.count, stats.success.count) == (1, 1)

    run(tmp_path, test)


def test_requests_sent_ahead_are_answered_in_their_order(tmp_path: Path) -> None:
    save_scale(tmp_path, "model", 2.0)
    num_requests = 50

    def write(number: int) -> bytes:
        inputs = [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}]
        body = orjson.dumps({"id": str(number), "inputs": inputs})
        return b"POST /v2/models/model/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    async def test(server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        writer.write(b"".join(map(write, range(num_requests))))
        for number in range(num_requests):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            answer = orjson.loads(await reader.readexactly(length))
            assert answer["id"] == str(number)
            assert answer["outputs"][0]["data"] == [2.0 * number] * 4
        writer.close()
        await writer.wait_closed()

    run(tmp_path, test)
