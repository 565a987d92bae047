"""The queue: who goes together, who waits, who is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry.serve.core.faults import InvalidRequest, Unavailable
from tensorferry.serve.core.queueing import BatchPolicy, Job, JobQueue, QueuePolicy


def make_job(num_rows: int = 1, key: str = "k", **changes: object) -> Job:
    return Job(inputs={"x": np.zeros((num_rows, 1))}, num_rows=num_rows, key=(key,), done=lambda _: None, **changes)


def fill(policy: BatchPolicy, *jobs: Job, now: float = 0.0) -> JobQueue:
    queue = JobQueue(policy)
    for job in jobs:
        queue.push(job, now)
    return queue


def test_nobody_waits_for_company_by_default() -> None:
    job = make_job()
    assert fill(BatchPolicy(max_batch_size=8), job).take(0.0).batch == [job]


def test_what_queued_goes_together_up_to_the_largest_batch() -> None:
    jobs = [make_job(rows) for rows in (3, 3, 3, 1)]
    queue = fill(BatchPolicy(max_batch_size=8), *jobs)
    assert queue.take(0.0).batch == jobs[:2]
    assert queue.take(0.0).batch == jobs[2:]
    assert len(queue) == 0


def test_free_instances_share_what_queued() -> None:
    jobs = [make_job() for _ in range(5)]
    queue = fill(BatchPolicy(max_batch_size=8), *jobs)
    assert [queue.take(0.0, num_free).batch for num_free in (3, 2, 1)] == [jobs[:2], jobs[2:4], jobs[4:]]


def test_those_that_wait_for_company_are_not_shared() -> None:
    jobs = [make_job() for _ in range(4)]
    assert fill(BatchPolicy(max_batch_size=8, preferred_sizes=(4,)), *jobs).take(0.0, num_free=2).batch == jobs


def test_jobs_of_another_shape_keep_their_place() -> None:
    jobs = [make_job(key=key) for key in "abab"]
    queue = fill(BatchPolicy(max_batch_size=8), *jobs)
    assert queue.take(0.0).batch == [jobs[0], jobs[2]]
    assert queue.take(0.0).batch == [jobs[1], jobs[3]]


def test_without_a_batch_dimension_every_job_goes_alone() -> None:
    jobs = [make_job(), make_job()]
    queue = fill(BatchPolicy(), *jobs)
    assert [queue.take(0.0).batch, queue.take(0.0).batch] == [[jobs[0]], [jobs[1]]]


def test_a_queue_delay_waits_for_a_full_batch_but_not_longer() -> None:
    policy = BatchPolicy(max_batch_size=2, max_delay_seconds=1.0)
    first, second = make_job(), make_job()
    queue = fill(policy, first)
    waits = queue.take(0.25)
    assert waits.batch == []
    assert waits.wait_seconds == 0.75
    assert queue.take(1.0).batch == [first]
    queue.push(first, 2.0)
    queue.push(second, 2.0)
    assert queue.take(2.0).batch == [first, second]


def test_a_job_waits_for_company_no_longer_than_its_own_time() -> None:
    policy = BatchPolicy(max_batch_size=8, max_delay_seconds=3.0, queue=QueuePolicy(allows_own_timeout=True))
    patient, hasty = make_job(), make_job(key="other", timeout_seconds=0.5)
    queue = fill(policy, patient, hasty)
    assert queue.take(0.25).wait_seconds == 0.25
    taken = queue.take(0.5)
    assert (taken.batch, taken.late, taken.wait_seconds) == ([], [hasty], 2.5)


def test_a_late_job_that_went_behind_the_others_is_not_looked_at_all_the_time() -> None:
    rules = QueuePolicy(timeout_seconds=0.5, delays_late=True)
    queue = fill(BatchPolicy(max_batch_size=8, max_delay_seconds=3.0, queue=rules), make_job())
    assert [queue.take(now).wait_seconds for now in (0.0, 0.5, 1.0)] == [0.5, 2.5, 2.0]


def test_a_job_that_waits_for_company_keeps_its_place_before_younger_ones() -> None:
    policy = BatchPolicy(max_batch_size=2, max_delay_seconds=1.0)
    old, young = make_job(key="a"), make_job(key="b")
    queue = fill(policy, old)
    queue.push(young, 0.9)
    for now in (0.9, 0.95):
        waits = queue.take(now)
        assert waits.batch == []
        assert waits.wait_seconds == pytest.approx(1.0 - now)
    assert queue.take(1.0).batch == [old]
    assert queue.take(1.0).batch == []
    assert queue.take(1.9).batch == [young]


def test_preferred_sizes_are_taken_first() -> None:
    jobs = [make_job() for _ in range(7)]
    queue = fill(BatchPolicy(max_batch_size=8, preferred_sizes=(2, 4), max_delay_seconds=1.0), *jobs)
    assert queue.take(0.0).batch == jobs[:4]
    assert queue.take(0.0).batch == jobs[4:6]
    assert queue.take(0.0).batch == []
    assert queue.take(1.0).batch == jobs[6:]


def test_higher_priorities_go_first_and_unknown_ones_are_refused() -> None:
    policy = BatchPolicy(max_batch_size=1, num_levels=3, default_level=2)
    low, middle, high = make_job(priority=3), make_job(), make_job(priority=1)
    queue = fill(policy, low, middle, high)
    assert [queue.take(0.0).batch[0] for _ in range(3)] == [high, middle, low]
    with pytest.raises(InvalidRequest, match="beyond the model's 3 levels"):
        queue.push(make_job(priority=4), 0.0)


def test_a_full_queue_refuses() -> None:
    queue = fill(BatchPolicy(queue=QueuePolicy(max_size=1)), make_job())
    with pytest.raises(Unavailable, match="queue is full"):
        queue.push(make_job(), 0.0)


def test_late_jobs_are_refused_or_go_last() -> None:
    late, fresh = make_job(), make_job()
    queue = fill(BatchPolicy(max_batch_size=1, queue=QueuePolicy(timeout_seconds=1.0)), late)
    queue.push(fresh, 0.9)
    taken = queue.take(1.5)
    assert taken.late == [late]
    assert taken.batch == [fresh]
    queue = fill(BatchPolicy(max_batch_size=1, queue=QueuePolicy(timeout_seconds=1.0, delays_late=True)), late)
    queue.push(fresh, 0.9)
    assert [queue.take(1.5).batch[0], queue.take(1.5).batch[0]] == [fresh, late]


def test_a_request_may_only_shorten_its_own_time() -> None:
    policy = QueuePolicy(timeout_seconds=5.0, allows_own_timeout=True)
    short, long = make_job(timeout_seconds=1.0), make_job(timeout_seconds=60.0)
    fill(BatchPolicy(queue=policy), short, long)
    assert (short.deadline, long.deadline) == (1.0, 5.0)
    fixed = make_job(timeout_seconds=1.0)
    fill(BatchPolicy(queue=QueuePolicy(timeout_seconds=5.0)), fixed)
    assert fixed.deadline == 5.0


def test_cancelled_jobs_leave_without_a_word() -> None:
    gone, stays = make_job(), make_job()
    queue = fill(BatchPolicy(max_batch_size=8), gone, stays)
    gone.cancelled = True
    assert queue.take(0.0).batch == [stays]


@given(
    jobs=st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab"), st.integers(0, 3)), max_size=40),
    preferred=st.sets(st.integers(1, 8), max_size=3),
    delay=st.sampled_from([0.0, 1.0]),
)
def test_every_job_leaves_once_and_no_batch_is_mixed_or_too_large(jobs: list, preferred: set, delay: float) -> None:
    policy = BatchPolicy(
        max_batch_size=8, preferred_sizes=tuple(sorted(preferred)), max_delay_seconds=delay, num_levels=3, default_level=2
    )
    made = [make_job(rows, key, priority=priority) for rows, key, priority in jobs]
    queue = fill(policy, *made)
    left: list[Job] = []
    while len(queue):
        taken = queue.take(2.0)
        assert taken.batch
        assert sum(job.num_rows for job in taken.batch) <= 8
        assert len({job.key for job in taken.batch}) == 1
        left += taken.batch
    assert sorted(map(id, left)) == sorted(map(id, made))
