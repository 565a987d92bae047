"""Build every candidate, check it against the original, measure it, and choose the fastest that gives the same answers.

Files are the expensive part: one a backend and precision. Threads are only a setting, so a file is checked once and measured with
each number of threads. A quick look sorts out what is clearly slower; the rest are timed in turns, and the best median wins.

The time limit bounds all of it, from the loading of the model on: each stage has its share, after which nothing of it is begun,
except that one candidate is always built and measured.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from tensorferry.errors import BadModel
from tensorferry.machine import count_cores
from tensorferry.optimization.agreement import Comparison, ReferenceAnswers
from tensorferry.optimization.build import NOT_BUILT, Builder, BuiltFile, ScratchFolder, SearchOptions, Tell
from tensorferry.optimization.candidates import (
    Candidate,
    CandidateResult,
    SearchResult,
    list_variants,
    make_candidate,
    thread_counts,
)
from tensorferry.optimization.check import check_candidate
from tensorferry.optimization.gate import AnswerGate
from tensorferry.optimization.measure import NUM_RUNS_A_TURN, Speed, has_free_batch, measure, take_rows, time_in_turns
from tensorferry.optimization.sources.source import Source, quiet_exporters, root_cause
from tensorferry.serve.runtimes.runtime import Runner

# candidates within this of the best are timed again, in turns: where others use the cores, a first look is off by as much
_NEAR = 2.5
_MAX_FINALISTS = 8
_MAX_REASON = 160  # letters of each, where several make up one line
ASK_SHARE = 0.25  # of the time: what the original's answers may take
# of the time: after it the original is not measured further, no file is begun, no other candidate is looked at
_ORIGINAL_SHARE, _BUILD_SHARE, _LOOK_SHARE = 0.4, 0.75, 0.9
_TURNS_SECONDS = (1.0, 20.0)  # at least and at most
_NOT_MEASURED = "not measured: the time was up"


def search(
    source: Source, reference: ReferenceAnswers, options: SearchOptions, folder: ScratchFolder, tell: Tell, began: float
) -> SearchResult:
    """The best way to serve `source`; files are written below `folder`, and the clock has run since `began`."""
    asked, built_by, looked_at, deadline = (
        began + share * options.seconds for share in (_ORIGINAL_SHARE, _BUILD_SHARE, _LOOK_SHARE, 1.0)
    )
    builder = Builder(reference, options, folder, tell)
    rejected = builder.rejected
    tell(f"measuring the original: {source.title} in {source.framework}")
    original = source.original.new_runner()
    baseline = _measure_original(source, original, reference, asked)
    built = builder.build_all(source, built_by)
    found = list(_measure_all(built, reference, options.gate, rejected, tell, looked_at))
    at_first = {each.title: _latency(each) for each in found}
    finalists, baseline = _time_finalists(found, baseline, original, reference, deadline, tell)
    # only what was timed in the same turns is compared: a first look may have met a busier or a quieter moment
    others = sorted((each for each in found if each.title not in {one.title for one in finalists}), key=_latency)
    chosen, finalists = _choose(source, reference, folder, finalists, baseline, rejected, deadline)
    source.set_num_threads(0)
    timed = [replace(each, verdict=_verdict(each, chosen)) for each in sorted(finalists, key=_latency)]
    fastest = min(at_first.values(), default=0.0)
    looked = [replace(each, verdict=f"{at_first[each.title] / fastest:.2f}x the fastest at a first look") for each in others]
    return SearchResult(
        model=source.title,
        framework=source.framework,
        chosen=timed[[each.title for each in timed].index(chosen.title)],
        candidates=(*timed, *looked, *rejected),
        baseline=baseline,
        judge=reference.judge,
        num_samples=reference.num_samples,
        gate=options.gate,
        tried=tuple(builder.tried),
        notes=(*source.notes, *options.notes, *_note_doubt(chosen, options.gate), *_note_left_out(reference, rejected)),
    )


def _note_doubt(chosen: CandidateResult, gate: AnswerGate) -> Iterator[str]:
    """Where it is not fp32 that was chosen: whether the samples are enough to be sure of it."""
    if chosen.precision != "fp32" and chosen.comparison is not None:
        doubt = gate.find_doubt(chosen.comparison)
        if doubt:
            yield doubt


def _note_left_out(reference: ReferenceAnswers, rejected: list[CandidateResult]) -> Iterator[str]:
    if reference.num_left:
        num_given = reference.num_samples + reference.num_left
        yield f"there was time to compare {reference.num_samples} of {num_given} samples; give more with --seconds"
    num_left = sum(each.verdict in (NOT_BUILT, _NOT_MEASURED) for each in rejected)
    if num_left:
        yield f"the time was up before {num_left} {'candidates' if num_left > 1 else 'candidate'}; give more with --seconds"


def _measure_original(source: Source, original: Runner, reference: ReferenceAnswers, deadline: float) -> CandidateResult:
    """The original with the number of threads that suits it best, which it is left with."""
    speeds: dict[int, Speed] = {}
    for num_threads in thread_counts(count_cores()):
        if speeds and time.perf_counter() > deadline:
            break
        source.set_num_threads(num_threads)
        speeds[num_threads] = measure(original, reference.signature, reference.batches[0].inputs, deadline)
    best = min(speeds, key=lambda count: speeds[count].latency_seconds)
    source.set_num_threads(best)
    return CandidateResult(
        f"{source.title}, as it is ({source.framework})", "fp32", "", "the original", Comparison(1.0, 0.0), speeds[best]
    )


def _measure_all(
    built: list[BuiltFile],
    reference: ReferenceAnswers,
    gate: AnswerGate,
    rejected: list[CandidateResult],
    tell: Tell,
    deadline: float,
) -> Iterator[CandidateResult]:
    variants = [list(list_variants(each.backend, each.precision, each.path, each.variant, each.settings)) for each in built]
    # every file with its usual number of threads comes first, the most promising one before all: time may be up after it
    order = sorted(
        ((at, index) for index, each in enumerate(variants) for at in range(len(each))),
        key=lambda pair: (pair[0], built[pair[1]].seconds),
    )
    is_any_measured = False
    for count, (at, index) in enumerate(order):
        candidate, file = variants[index][at], built[index]
        result = CandidateResult(
            candidate.title, file.precision, file.route, "", file.comparison, None, candidate.nbytes, candidate, file.kept
        )
        if is_any_measured and time.perf_counter() > deadline:
            rejected.append(replace(result, verdict=_NOT_MEASURED, candidate=None))
            continue
        tell(f"measuring {count + 1} of {len(order)}: {candidate.title}")
        if candidate.accelerator:  # threads change no answer; other kernels may
            comparison, reason = check_candidate(candidate, reference, gate)
            result = replace(result, comparison=comparison)
            if reason:
                rejected.append(replace(result, verdict=reason, candidate=None))
                continue
        try:
            speed = _look_at(candidate, reference, deadline)
        except Exception as error:  # it passed with other settings; with these it may not even load
            rejected.append(replace(result, verdict=f"cannot be run: {root_cause(error)}", candidate=None))
            continue
        is_any_measured = True
        yield replace(result, speed=speed)


def _look_at(candidate: Candidate, reference: ReferenceAnswers, deadline: float) -> Speed:
    """How fast it is at a first look, freshly loaded."""
    runtime = candidate.load(reference.signature)
    runner = runtime.new_runner()
    try:
        return measure(runner, reference.signature, reference.batches[0].inputs, deadline)
    finally:
        runner.close()
        runtime.close()


def _time_finalists(
    found: list[CandidateResult],
    baseline: CandidateResult,
    original: Runner,
    reference: ReferenceAnswers,
    deadline: float,
    tell: Tell,
) -> tuple[list[CandidateResult], CandidateResult]:
    """The fastest candidates, at least two, and the original, with latencies that were measured side by side."""
    near = _pick_finalists(found, _latency(baseline), deadline - time.perf_counter())
    if not near:
        return [], baseline
    tell(f"timing the {f'{len(near)} ' if len(near) > 1 else ''}fastest and the original in turns")
    timed, medians = _time_in_turns(near, {baseline.title: original}, reference, deadline)
    return timed, _with_latency(baseline, medians[baseline.title])


def _pick_finalists(found: list[CandidateResult], baseline_seconds: float, seconds: float) -> list[CandidateResult]:
    """The nearest, at least two, the fastest first; no more than have a turn in that time."""
    ranked = sorted(found, key=_latency)[:_MAX_FINALISTS]
    near = [each for at, each in enumerate(ranked) if at < 2 or _latency(each) <= _NEAR * _latency(ranked[0])]
    while len(near) > 2 and NUM_RUNS_A_TURN * (baseline_seconds + sum(map(_latency, near))) > seconds:
        near.pop()
    return near


def _time_in_turns(
    results: list[CandidateResult], others: dict[str, Runner], reference: ReferenceAnswers, deadline: float
) -> tuple[list[CandidateResult], dict[str, float]]:
    """The candidates with latencies that were measured side by side, together with other runners, whose medians are told, too."""
    runtimes = {each.title: each.candidate.load(reference.signature) for each in results if each.candidate is not None}
    runners: dict[str, Runner] = {title: runtime.new_runner() for title, runtime in runtimes.items()}
    shortest, longest = _TURNS_SECONDS
    seconds = max(shortest, min(longest, deadline - time.perf_counter()))
    sample = reference.batches[0].inputs
    batch = 1 if has_free_batch(reference.signature) else len(next(iter(sample.values())))
    medians = time_in_turns({**runners, **others}, reference.signature, take_rows(sample, batch), seconds)
    for title, runner in runners.items():
        runner.close()
        runtimes[title].close()
    return [_with_latency(each, medians[each.title]) for each in results], medians


def _choose(
    source: Source,
    reference: ReferenceAnswers,
    folder: ScratchFolder,
    finalists: list[CandidateResult],
    baseline: CandidateResult,
    rejected: list[CandidateResult],
    deadline: float,
) -> tuple[CandidateResult, list[CandidateResult]]:
    """What is to serve, and the finalists, with the original among them where it was saved to be one."""
    best = min(finalists, key=_latency, default=None)
    if best is None:
        why = (
            "no engine gives the same answers"
            if any(each.comparison is not None for each in rejected)
            else "no engine can take it"
        )
        try:
            kept = _keep_original(source, reference, folder, why, deadline)
        except BadModel as error:
            ways = _list_reasons([*rejected, CandidateResult("", "fp32", f"its own format ({source.keep.title})", str(error))])
            raise BadModel(f"{source.title} cannot be served in any way: {ways}") from error
        return kept, [kept]
    if _latency(best) <= _latency(baseline) or source.keep in source.routes:
        return best, finalists
    try:
        kept = _keep_original(source, reference, folder, "no engine is faster", deadline)
    except BadModel as error:  # a candidate is there, if a slower one
        rejected.append(CandidateResult(f"{source.title}, saved", "fp32", source.keep.title, str(error)))
        return best, finalists
    # what is saved of a model may be slower than what was in memory
    pair, _ = _time_in_turns([best, kept], {}, reference, deadline)
    return min(pair, key=_latency), [*(each for each in finalists if each is not best), *pair]


def _keep_original(
    source: Source, reference: ReferenceAnswers, folder: ScratchFolder, why: str, deadline: float
) -> CandidateResult:
    """The original in its own format; raises BadModel where that is not possible, either."""
    try:
        with quiet_exporters():
            path = source.keep.write(folder.new())
    except Exception as error:
        raise BadModel(f"cannot be saved: {root_cause(error)}") from error
    candidate = replace(make_candidate(source.keep.backend, "fp32", path, count_cores()), trust=source.keep.trust)
    comparison, reason = check_candidate(candidate, reference, AnswerGate(1.0))
    if reason:
        raise BadModel(f"once it is saved: {reason}")
    speed, verdict = _look_at(candidate, reference, deadline), f"the original: {why}"
    return CandidateResult(candidate.title, "fp32", source.keep.title, verdict, comparison, speed, candidate.nbytes, candidate)


def _list_reasons(rejected: list[CandidateResult]) -> str:
    """Every way with its reason, in one line; ways that failed for the same reason together."""
    routes: dict[str, list[str]] = {}
    for each in rejected:
        routes.setdefault(each.verdict, []).append(each.route)
    return "; ".join(f"{' and '.join(dict.fromkeys(each))}: {verdict[:_MAX_REASON]}" for verdict, each in routes.items())


def _verdict(result: CandidateResult, chosen: CandidateResult) -> str:
    if result.title == chosen.title:
        return f"chosen: {chosen.verdict or 'the fastest that gives the same answers'}"
    return f"{_latency(result) / _latency(chosen):.2f}x the time of the chosen one"


def _with_latency(result: CandidateResult, seconds: float) -> CandidateResult:
    assert result.speed is not None
    return replace(result, speed=Speed(seconds, max(result.speed.rows_per_second, 1 / seconds), result.speed.batch))


def _latency(result: CandidateResult) -> float:
    assert result.speed is not None
    return result.speed.latency_seconds
