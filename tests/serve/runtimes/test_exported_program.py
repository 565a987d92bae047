"""Programs of torch.export: plain ones are the same after vetting, and nothing of a hostile one runs."""

import contextlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Touch, touching
from program_files import Program, call, change, change_text, rewrite, save

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.exported_program import load_program
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime


def pickled(value: Any) -> bytes:
    """As torch saves it."""
    target = io.BytesIO()
    torch.save(value, target)
    return target.getvalue()


# ---- files that run something when torch reads them, each with what the error names -----------------------------------------


def pickle_weights(path: Path, mark: Path) -> str:
    def edit(table: Program) -> None:
        table["config"]["linear.bias"] |= {"path_name": "weight_99", "use_pickle": True}

    change(path, edit, "data/weights/model_weights_config.json")
    rewrite(path, {"data/weights/weight_99": pickled(Touch(mark))})
    return "the pickle weight_99"


def pickle_constants(path: Path, mark: Path) -> str:
    def edit(table: Program) -> None:
        table["config"]["constant"] |= {"path_name": "opaque_obj_0", "use_pickle": True}

    change(path, edit, "data/constants/model_constants_config.json")
    rewrite(path, {"data/constants/opaque_obj_0": pickle.dumps(Touch(mark))})
    return "opaque_obj_0"


def pickle_sample_inputs(path: Path, mark: Path) -> str:
    rewrite(path, {"data/sample_inputs/model.pt": pickled(((Touch(mark),), {}))})
    return "a pickle of more than tensors"


def pickle_weights_as_older_torch(path: Path, mark: Path) -> str:
    rewrite(path, {"data/weights/model.pt": pickled({"linear.bias": Touch(mark)})})
    return "a pickle of more than tensors"


def code_in_a_size(path: Path, mark: Path) -> str:
    def edit(program: Program) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": {"expr_str": f"Max(0, {touching(mark)})", "hint": None}}

    change(path, edit)
    return 'the expression \'Max(0, __import__("os")'


def code_in_a_guard(path: Path, mark: Path) -> str:
    change(path, lambda program: program["guards_code"].append(f"{touching(mark)} is None"))
    return "the expression"


def code_in_a_constant_input(path: Path, mark: Path) -> str:
    class Switch(torch.nn.Module):
        def forward(self, x: torch.Tensor, others: str) -> torch.Tensor:
            return x + 1 if others == "more" else x

    torch.export.save(torch.export.export(Switch(), (torch.ones(6, 4), "more")), path)
    change_text(path, "more", f"' or {touching(mark)} or '")

    def hide(program: Program) -> None:
        module = program["graph_module"]
        module["graph"]["target"] = "_operator.add"  # with that it must not pass for a node, whose texts are only values
        for spec in module["signature"]["input_specs"]:
            if "constant_input" in spec:
                spec["constant_input"]["value"] = {"as_string": "more"}

    change(path, hide)
    return "the name"


def code_in_a_key_of_an_input(path: Path, mark: Path) -> str:
    key = f'"+str({touching(mark)})+"'
    change_text(path, "shift", key)
    rewrite(path, {"data/sample_inputs/model.pt": pickled(((torch.ones(4, 4), {key: torch.ones(1)}), {}))})
    return "the name"


def a_module_that_is_imported(path: Path, mark: Path) -> str:
    (mark.parent / "hostile_module.py").write_text(f"open({str(mark)!r}, 'w')")
    factory = {"default_factory_module": "hostile_module", "default_factory_name": "x", "dict_context": []}

    def edit(program: Program) -> None:
        spec = {"type": "collections.defaultdict", "context": factory, "children_spec": []}
        program["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, spec])

    change(path, edit)
    return "a container of the type 'collections.defaultdict'"


def a_call_that_makes_a_file(path: Path, mark: Path) -> str:
    arguments = {"filename": {"as_string": str(mark)}, "shared": {"as_bool": True}, "size": {"as_int": 4}}
    change(path, call("torch.ops.aten.from_file.default", arguments))
    return "a call of 'torch.ops.aten.from_file.default'"


RUN_WHEN_TRUSTED = [
    pickle_weights,
    pickle_constants,
    pickle_sample_inputs,
    pickle_weights_as_older_torch,
    code_in_a_size,
    code_in_a_guard,
    code_in_a_constant_input,
    code_in_a_key_of_an_input,
    a_module_that_is_imported,
    a_call_that_makes_a_file,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", RUN_WHEN_TRUSTED, ids=lambda make: make.__name__)
def test_nothing_of_a_hostile_program_runs_without_trust(
    make: Callable[[Path, Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.syspath_prepend(tmp_path)
    path = save(tmp_path / "model.pt2")
    what = make(path, mark)
    with pytest.raises(BadModel) as caught:
        load_runtime("pytorch", LoadOptions(path))
    assert what in str(caught.value)
    assert "--trust" in str(caught.value)
    assert not mark.exists()
    with contextlib.suppress(Exception):  # the same file is one that runs something
        program = load_program(path, trust=True)
        program.module()(*program.example_inputs[0])
    assert mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.load_library",
        "torch.load",
        "torch.os.mknod",
        "torch.ops.aten.save.default",
        "torch.ops.inductor.x",
        "torch.hub.load",
        "eval",
    ],
)
def test_only_ops_that_compute_can_be_called(target: str, tmp_path: Path) -> None:
    path = change(save(tmp_path / "model.pt2"), call(target, {"": {"as_string": "x"}}))
    with pytest.raises(BadModel, match=r"a call of .*--trust"):
        load_program(path, trust=False)


@pytest.mark.parametrize(
    "size",
    [
        "9**9**9",
        "((s0**9)**9)**9",
        "2**s0",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(2, Pow(9, 9))",
        "LShift(1, 999999999)",
        "9 << 65",
    ],
)
def test_no_size_takes_for_ever_to_work_out(size: str, tmp_path: Path) -> None:
    def edit(program: Program) -> None:
        program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": size, "hint": None}}

    with pytest.raises(BadModel, match=r"the expression .*--trust"):
        load_program(change(save(tmp_path / "model.pt2"), edit), trust=False)


def test_a_size_may_be_a_square(tmp_path: Path) -> None:
    class Square(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(x.shape[0] ** 2)

    program = torch.export.export(Square(), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, tmp_path / "model.pt2")
    assert load_program(tmp_path / "model.pt2", trust=False).module()(torch.ones(5)).shape == (25,)


@pytest.mark.parametrize("name", ["linear", "x", "p_linear_weight", "linear.weight", "y"])
def test_no_name_can_become_source_code(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt2")
    change_text(path, name, f"[{touching(tmp_path / 'mark')}][0]")
    with pytest.raises(BadModel, match=r"the (name|keys) .*__import__.*--trust"):
        load_program(path, trust=False)


@pytest.mark.parametrize(
    "member", ["data/aotinductor/model/code.so", "models/other.json", "../outside", "data/constants/custom_obj_0"]
)
def test_a_member_of_another_kind_is_refused(member: str, tmp_path: Path) -> None:
    path = rewrite(save(tmp_path / "model.pt2"), {member: b"\x7fELF"})
    with pytest.raises(BadModel, match=r"no part of a plain exported program.*--trust"):
        load_program(path, trust=False)


def test_the_format_of_torch_2_7_which_is_all_pickles_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("version", "8.0")
        for name in ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt"):
            archive.writestr(name, pickled(Touch(mark)))
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(BadModel, match=r"pickles.*--trust"):
        load_program(tmp_path / "model.pt2", trust=False)
    assert not mark.exists()


def test_a_member_that_unpacks_to_more_than_the_file_is_refused(tmp_path: Path) -> None:
    path = rewrite(save(tmp_path / "model.pt2"), {"data/weights/weight_0": bytes(2**24)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(BadModel, match=r"compressed.*--trust"):
        load_program(path, trust=False)


def test_weights_without_bytes_do_not_become_as_many_zeros_as_are_claimed(tmp_path: Path) -> None:
    def edit(table: Program) -> None:
        table["config"]["nothing"]["tensor_meta"]["sizes"] = [{"as_int": 2**40}]

    path = change(save(tmp_path / "model.pt2"), edit, "data/weights/model_weights_config.json")
    with pytest.raises(BadModel, match="has no bytes"):
        load_program(path, trust=False)


def test_a_plain_program_gives_the_same_answers_and_keeps_its_guards(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt2")
    vetted, whole = load_program(path, trust=False), load_program(path, trust=True)
    inputs = (torch.ones(6, 4), {"shift": torch.ones(1)})
    given, expected = vetted.module()(*inputs), whole.module()(*inputs)
    assert given.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in given.items())
    for program in (vetted, whole):
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(torch.ones(5, 4), {"shift": torch.ones(1)})


def test_texts_that_a_user_adds_do_not_matter(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Identity(), (torch.ones(2),))
    torch.export.save(program, tmp_path / "model.pt2", extra_files={"notes.txt": "any (text) 'here'"})
    assert torch.equal(load_program(tmp_path / "model.pt2", trust=False).module()(torch.ones(2)), torch.ones(2))
