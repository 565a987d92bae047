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

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.exported_program import load_program
from tensorferry.serve.runtimes.runtime import LoadOptions
from tensorferry.serve.runtimes.table import load_runtime

Program = dict[str, Any]
_AUTO = torch.export.Dim.AUTO


class Net(torch.nn.Module):
    """A little of everything: weights, buffers, constants, control flow, guards, symbolic sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.constant = torch.arange(4.0)
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> dict[str, Any]:
        y = torch.nn.functional.gelu(self.norm(self.linear(x)) * self.constant, approximate="tanh")
        y = torch.einsum("bij,bjk->bik", y.reshape(-1, 2, 2), y.reshape(-1, 2, 2))
        if x.shape[0] % 2 == 0:
            y = y + others["shift"]
        with torch.no_grad():
            y = y * 2
        return {"y": torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,)), "halves": y.reshape(x.shape[0] // 2, -1)}


def save(path: Path) -> Path:
    """Write an exported program that has a little of everything."""
    example = (torch.randn(4, 4), {"shift": torch.ones(1)})
    program = torch.export.export(Net().eval(), example, dynamic_shapes=({0: _AUTO}, {"shift": None}))
    torch.export.save(program, path)
    return path


def rewrite(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """Put other members into an archive, in place of those that have their names."""
    with zipfile.ZipFile(path) as archive:
        kept = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in (kept | members).items():
            archive.writestr(f"archive/{name}", data)
    return path


def change(path: Path, edit: Callable[[Program], None], member: str = "models/model.json") -> Path:
    """Edit a JSON member of an archive."""
    with zipfile.ZipFile(path) as archive:
        found = json.loads(archive.read(f"{archive.namelist()[0].partition('/')[0]}/{member}"))
    edit(found)
    return rewrite(path, {member: json.dumps(found).encode()})


def change_text(path: Path, old: str, new: str) -> None:
    """Replace a text wherever it stands alone in the graph of an archive."""
    with zipfile.ZipFile(path) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith("models/model.json"))).decode()
    before = text
    old, new = json.dumps(old), json.dumps(new)
    for _ in range(3):  # also where JSON stands in JSON, twice
        text = text.replace(old, new)
        old, new = (json.dumps(each)[1:-1] for each in (old, new))
    assert text != before
    rewrite(path, {"models/model.json": text.encode()})


def call(target: str, arguments: Program) -> Callable[[Program], None]:
    """An edit that puts one more call at the end of a graph."""

    def edit(program: Program) -> None:
        graph = program["graph_module"]["graph"]
        inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
        outputs = [{"as_tensor": {"name": "one_more"}}]
        graph["nodes"].append({"target": target, "inputs": inputs, "outputs": outputs, "metadata": {}, "name": "one_more"})
        graph["tensor_values"]["one_more"] = next(iter(graph["tensor_values"].values()))

    return edit


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
