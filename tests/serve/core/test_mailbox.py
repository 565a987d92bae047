"""Answers reach the loop whatever thread found them, in which turn, and whatever becomes of the ones before."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tensorferry.serve.core.deferred import DeferredCalls
from tensorferry.serve.core.mailbox import Mailbox


def run(test: Callable[[Mailbox, DeferredCalls, list[Any]], None], num_turns: int = 3) -> list[Any]:
    """What was told, after some turns of a loop in which `test` began."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        deferred = DeferredCalls()
        deferred.attach(loop)
        told: list[Any] = []
        test(Mailbox(loop, deferred), deferred, told)
        for _ in range(num_turns):
            await asyncio.sleep(0.01)
        return told

    return asyncio.run(main())


def test_in_the_middle_of_a_turn_an_answer_waits_for_the_next() -> None:
    def test(mailbox: Mailbox, _: DeferredCalls, told: list[Any]) -> None:
        mailbox.post(told.append, "answer")
        told.append("asked")

    assert run(test) == ["asked", "answer"]


def test_at_the_end_of_a_turn_it_is_told_at_once_and_what_comes_of_it_later() -> None:
    def test(mailbox: Mailbox, deferred: DeferredCalls, told: list[Any]) -> None:
        def tell_more(word: str) -> None:
            mailbox.post(told.append, "more")
            told.append(word)

        def end_turn() -> None:
            mailbox.post(tell_more, "answer")
            told.append("turn over")

        deferred.call(end_turn)
        told.append("asked")

    assert run(test) == ["asked", "answer", "turn over", "more"]


def test_other_threads_never_tell_by_themselves() -> None:
    threads: list[int] = []

    def test(mailbox: Mailbox, deferred: DeferredCalls, _: list[Any]) -> None:
        def end_turn() -> None:
            other = threading.Thread(target=mailbox.post, args=(lambda _: threads.append(threading.get_ident()), None))
            other.start()
            other.join()

        deferred.call(end_turn)

    run(test)
    assert threads == [threading.get_ident()]


def test_an_answer_that_cannot_be_told_keeps_no_other_back() -> None:
    def fail(_: Any) -> None:
        raise ValueError("the client's line broke")

    def test(mailbox: Mailbox, deferred: DeferredCalls, told: list[Any]) -> None:
        def end_turn() -> None:
            mailbox.post(fail, None)
            mailbox.post(told.append, "at once")

        deferred.call(end_turn)
        mailbox.post(fail, None)
        mailbox.post(told.append, "later")

    assert sorted(run(test)) == ["at once", "later"]
