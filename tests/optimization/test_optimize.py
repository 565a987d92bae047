"""From a model to an engine that gives its answers: every kind of model, and what happens when one way is barred."""

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from nets import (
    Picture,
    answer,
    assert_answers,
    make_images,
    make_picture,
    make_rows,
    make_rows_model,
    make_sentence,
    make_texts,
    save_program,
)
from safetensors.torch import save_file

import tensorferry as ferry
from tensorferry.optimization import build
from tensorferry.optimization.agreement import ask_original
from tensorferry.optimization.build import ScratchFolder, SearchOptions
from tensorferry.optimization.candidates import Candidate
from tensorferry.optimization.check import FP32_DIFFERENCE
from tensorferry.optimization.search import search
from tensorferry.optimization.sources.torch import read_module
from tensorferry.serve.core.config import read_config
from tensorferry.serve.runtimes.runtime import LoadOptions, Signature
from tensorferry.serve.runtimes.table import load_runtime


def test_a_module_becomes_an_engine_with_its_answers(picture_engine) -> None:
    images = make_images(5)
    assert_answers(picture_engine, picture_engine(images), answer(make_picture(), images))


def test_every_candidate_was_compared_and_measured(picture_engine) -> None:
    result = picture_engine.result
    assert {each.candidate.backend for each in result.candidates if each.passed} == {"onnxruntime", "openvino"}
    for candidate in result.candidates:
        # a CPU that computes in bf16 has candidates of it, too, whose values are coarser
        assert candidate.comparison.agreement >= result.gate.min_agreement
        assert candidate.precision == "bf16" or candidate.comparison.difference <= FP32_DIFFERENCE
        assert candidate.speed.latency_seconds > 0
    timed = [candidate for candidate in result.candidates if "first look" not in candidate.verdict]
    assert len(timed) >= 2
    assert result.chosen.speed.latency_seconds == min(candidate.speed.latency_seconds for candidate in timed)
    assert result.chosen.verdict.startswith("chosen")


def test_batch_and_length_stay_free(sentence_engine) -> None:
    texts = make_texts()
    assert [tensor.shape for tensor in sentence_engine.signature.inputs] == [(-1, -1), (-1, -1)]
    assert [tensor.name for tensor in sentence_engine.signature.outputs] == ["logits"]
    for rows, length in ((1, 12), (7, 5), (20, 3)):
        ids, mask = texts["ids"][:rows, :length], np.ones((rows, length), np.int64)
        assert_answers(sentence_engine, sentence_engine(ids=ids, mask=mask), answer(make_sentence(), ids, mask))


def test_the_model_in_hand_is_left_as_it_was() -> None:
    model = make_picture().train()
    before = copy.deepcopy(model.state_dict())
    ferry.optimize(model, make_images(), seconds=1).close()
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_exported_program_is_read_from_its_file(tmp_path: Path) -> None:
    engine = ferry.optimize(save_program(tmp_path / "net.pt2"), make_images(), seconds=1)
    assert_answers(engine, engine(make_images()), answer(make_picture(), make_images()))
    engine.close()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_read_by_who_trusts_it(tmp_path: Path) -> None:
    torch.jit.script(make_picture()).save(tmp_path / "net.pt")
    with pytest.raises(ferry.BadModel, match="may carry code"):
        ferry.optimize(tmp_path / "net.pt", make_images())
    engine = ferry.optimize(tmp_path / "net.pt", make_images(), trust=True, seconds=1)
    assert_answers(engine, engine(make_images()), answer(make_picture(), make_images()))
    engine.close()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_that_does_not_tell_its_rank_becomes_an_engine(how: str, tmp_path: Path) -> None:
    model = make_rows_model()
    script = torch.jit.script(model) if how == "script" else torch.jit.trace(model, torch.zeros(2, 6))
    script.save(tmp_path / "net.pt")
    engine = ferry.optimize(tmp_path / "net.pt", make_rows(), trust=True, seconds=1)
    openvino = next(each for each in engine.result.candidates if each.title.startswith("OpenVINO fp32"))
    assert openvino.comparison.difference <= FP32_DIFFERENCE
    assert_answers(engine, engine(make_rows(5)), answer(model, make_rows(5)))
    engine.close()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_that_no_engine_can_take_is_kept_as_the_file_that_it_was(tmp_path: Path) -> None:
    torch.jit.trace(_Bessel().eval(), torch.from_numpy(make_rows(2))).save(tmp_path / "net.pt")
    engine = ferry.optimize(tmp_path / "net.pt", make_rows(), trust=True, seconds=1)
    folder = engine.save(tmp_path / "models" / "net")
    assert (folder / "model.pt").read_bytes() == (tmp_path / "net.pt").read_bytes()
    config = read_config(folder.parent)
    names = [[tensor.name for tensor in tensors] for tensors in (config.input, config.output)]
    runtime = load_runtime(
        "pytorch", LoadOptions(folder / "model.pt", 1, trust=True, input_names=names[0], output_names=names[1])
    )
    (given,) = runtime.new_runner().run({names[0][0]: make_rows(5)}, names[1])
    assert_answers(engine, given, answer(_Bessel(), make_rows(5)))
    engine.close()


class _Bessel(torch.nn.Module):
    """Calls an op that exists in torch alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def test_an_onnx_file_is_its_own_first_candidate(picture_engine, tmp_path: Path) -> None:
    onnx_file = next(each.candidate.path for each in picture_engine.result.candidates if each.candidate.backend == "onnxruntime")
    shutil.copy(onnx_file, tmp_path / "net.onnx")
    engine = ferry.optimize(str(tmp_path / "net.onnx"), seconds=1)
    assert_answers(engine, engine(make_images()), answer(make_picture(), make_images()))
    assert any("random" in note for note in engine.result.notes)
    engine.close()


def test_an_openvino_file_is_read_and_stays_in_openvino(tmp_path: Path) -> None:
    import openvino as ov
    import openvino.opset13 as ops

    rng = np.random.default_rng(0)
    weights, rows = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
    x = ops.parameter([-1, 4], np.float32, name="x")
    model = ov.Model([ops.matmul(x, ops.constant(weights), False, False)], [x], "net")
    model.outputs[0].set_names({"scores"})
    ov.save_model(model, tmp_path / "net.xml", compress_to_fp16=False)
    engine = ferry.optimize(tmp_path / "net.xml", rows, seconds=1)
    assert engine.candidate.backend == "openvino"
    assert_answers(engine, engine(rows), rows @ weights)
    folder = engine.save(tmp_path / "models" / "net")
    assert {"model.xml", "model.bin"} <= {each.name for each in folder.iterdir()}
    engine.close()


def test_the_time_limit_leaves_candidates_out_and_says_so_but_finishes_one_engine() -> None:
    engine = ferry.optimize(make_picture(), make_images(), precision="int8", seconds=0.001)
    candidates = engine.result.candidates
    left = [each for each in candidates if "the time was up" in each.verdict]
    assert {each.candidate.backend for each in candidates if each.candidate is not None} >= {"onnxruntime"}
    # the other backend's file, every int8, and other numbers of threads, of which there may be none
    assert {each.precision for each in left} == {"fp32", "int8"}
    assert any("OpenVINO fp32" in each.title for each in left)
    assert f"the time was up before {len(left)} candidates; give more with --seconds" in engine.result.notes
    engine.close()


def test_a_branch_that_torch_cannot_export_takes_the_tracer() -> None:
    class Branching(Picture):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            found = super().forward(image)
            return found if float(found.detach().abs().sum()) >= 0 else -found

    engine = ferry.optimize(Branching().eval(), make_images(), seconds=1)
    routes = {candidate.route: candidate.verdict for candidate in engine.result.candidates}
    assert engine.result.chosen.route == "OpenVINO from TorchScript's tracer"
    assert "cannot be exported" in routes["torch.export, then ONNX"]
    engine.close()


class _Counting(Picture):
    """Remembers how many rows it was ever called with."""

    num_rows: ClassVar[list[int]] = []

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.num_rows.append(len(image))
        return super().forward(image)


def test_what_a_module_gives_is_learnt_from_a_few_rows() -> None:
    _Counting.num_rows.clear()
    source = read_module(_Counting().eval(), {"image": make_images(256)})
    assert max(_Counting.num_rows) == 3
    assert [tensor.shape for tensor in source.signature.outputs] == [(-1, 3)]


def test_the_stages_before_the_search_are_told_and_on_the_clock() -> None:
    told: list[str] = []
    engine = ferry.optimize(make_picture(), make_images(80), seconds=0.001, tell=told.append)
    assert told[:3] == ["loading the model", "asking the original: Picture in torch", "measuring the original: Picture in torch"]
    assert engine.result.num_samples == 32  # the time was up before the original was asked
    assert "there was time to compare 32 of 80 samples; give more with --seconds" in engine.result.notes
    engine.close()


def test_samples_weights_and_calibration_may_be_the_names_of_files(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Picture().eval()
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    np.save(tmp_path / "images.npy", make_images())
    np.save(tmp_path / "others.npy", make_images(40)[24:])
    engine = ferry.optimize(
        f"{Path(__file__).with_name('nets.py')}:make_picture",
        str(tmp_path / "images.npy"),
        weights=str(tmp_path / "net.safetensors"),
        calibrate=str(tmp_path / "others.npy"),
        precision="int8",
        seconds=0.01,
    )
    assert engine.result.num_samples == len(make_images())
    assert_answers(engine, engine(make_images()), answer(model, make_images()))
    engine.close()


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = ferry.optimize(make_rows_model(), make_rows(), seconds=0.01)
    engine.close()
    engine.close()
    for use in (lambda: engine(make_rows()), lambda: engine.save(tmp_path / "net")):
        with pytest.raises(ferry.BadModel, match="this engine is closed"):
            use()


def test_one_text_is_no_list_of_labels() -> None:
    with pytest.raises(ferry.BadOption, match="expected labels one by one"):
        ferry.optimize(make_rows_model(), make_rows(), labels="cat")


def test_an_example_of_wider_numbers_is_taken_in_the_type_of_the_weights() -> None:
    engine = ferry.optimize(make_rows_model(), make_rows().astype(np.float64), seconds=0.01)
    assert [tensor.datatype for tensor in engine.signature.inputs] == ["FP32"]
    engine.close()


class _Remembering:
    """An original that answers from memory, as nothing that was saved of it can."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    def new_runner(self) -> "_Remembering":
        return self

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        return [np.zeros((len(inputs["image"]), 3), np.float32)]

    def close(self) -> None:
        pass


def test_what_is_kept_of_the_original_is_measured_as_it_will_be_served() -> None:
    source = read_module(make_picture(), {"image": make_images()})
    reference = ask_original(source.original.new_runner(), source.signature, {"image": make_images()})
    quick = replace(source, original=_Remembering(source.signature))
    folder = ScratchFolder()
    result = search(quick, reference, SearchOptions(seconds=1), folder, lambda _: None, time.perf_counter())
    kept = next(each for each in result.candidates if each.title.startswith("PyTorch"))
    assert kept.speed.latency_seconds > result.baseline.speed.latency_seconds
    assert result.chosen.speed.latency_seconds <= kept.speed.latency_seconds
    folder.remove()


class _Negated:
    """A runtime on a kernel that is wrong: its answers have the other sign."""

    def __init__(self, runtime) -> None:
        self.runtime, self.close = runtime, runtime.close

    def new_runner(self):
        runner = self.runtime.new_runner()

        class Wrong:
            close = runner.close

            def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
                return [-each for each in runner.run(inputs, outputs)]

        return Wrong()


def test_an_accelerator_that_gives_other_answers_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Candidate.load

    def load_somewhere(candidate: Candidate, signature: Signature):
        runtime = load(replace(candidate, accelerator=""), signature)
        return _Negated(runtime) if candidate.accelerator else runtime

    monkeypatch.setattr("tensorferry.optimization.candidates.find_accelerators", lambda: ("cuda",))
    monkeypatch.setattr(Candidate, "load", load_somewhere)
    engine = ferry.optimize(make_rows_model(), make_rows(), precision="fp32", seconds=2)
    (wrong,) = [each for each in engine.result.candidates if "cuda" in each.title.lower()]
    assert not wrong.passed
    assert "99 % are asked for" in wrong.verdict
    assert "cuda" not in engine.result.chosen.title.lower()
    engine.close()


def test_an_int8_file_that_is_slow_at_a_glance_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_CHEAP_SECONDS", 0.0)  # as if samples were many
    monkeypatch.setattr(build, "_TOO_SLOW", 0.0)  # and any time too long
    engine = ferry.optimize(make_rows_model(), make_rows(), precision="fp32,int8,int4", seconds=60)
    verdicts = [each.verdict for each in engine.result.candidates if each.precision != "fp32"]
    assert any("no product that is wide enough" in each for each in verdicts)  # for int4
    assert all("its answers were not compared" in each or "cannot be quantised" in each for each in verdicts)
    assert {each.precision for each in engine.result.tried} == {"fp32"}
    engine.close()
