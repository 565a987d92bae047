"""What this machine says of itself, and its rates."""

import os

from tensorferry.machine import count_cores, find_processor
from tensorferry.machine.measure import measure_flops_per_second, measure_memory_nbytes_per_second


def test_the_processor_has_a_name_of_one_line() -> None:
    assert find_processor() == find_processor().strip()
    assert "\n" not in find_processor()


def test_only_cores_that_this_process_may_run_on_are_counted() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert count_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert count_cores() == len(allowed)


def test_rates_are_those_of_a_machine_and_not_of_an_empty_loop() -> None:
    assert 1e8 < measure_flops_per_second() < 1e15
    assert 1e8 < measure_memory_nbytes_per_second() < 1e13
