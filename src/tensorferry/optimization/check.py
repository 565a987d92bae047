"""Does a file that was written answer as the original does?"""

import contextlib
from collections.abc import Callable

from tensorferry.optimization.agreement import Comparison, ReferenceAnswers, compare_answers
from tensorferry.optimization.candidates import Candidate
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.sources.source import root_cause
from tensorferry.serve.runtimes.runtime import Runner

FP32_DIFFERENCE = 1e-4  # the largest relative difference that other orders of summation explain


def check_candidate(
    candidate: Candidate, reference: ReferenceAnswers, gate: AnswerGate, look: Callable[[Runner], str] = lambda _: ""
) -> tuple[Comparison | None, str]:
    """How a freshly loaded candidate answers, and why it is rejected (no reason: it passes).

    `look` is given what runs it first, and may say why its answers need not be compared.
    """
    try:
        runtime = candidate.load(reference.signature)
    except Exception as error:  # a file that was written without an error may still be no model
        return None, f"cannot be loaded: {root_cause(error)}"
    runner = runtime.new_runner()
    try:
        reason = ""
        with contextlib.suppress(Exception):  # what cannot run is told when it is compared
            reason = look(runner)
        if reason:
            return None, reason
        comparison = compare_answers(reference, runner, gate.is_lost)
    finally:
        runner.close()
        runtime.close()
    reason = gate.find_reason(comparison)
    if reason:
        return comparison, reason
    if candidate.precision == "fp32" and comparison.difference > FP32_DIFFERENCE:
        difference = f"{comparison.difference:.2g}"
        return comparison, f"differs by {difference} of the largest value; fp32 may differ by {FP32_DIFFERENCE:g}"
    return comparison, ""
