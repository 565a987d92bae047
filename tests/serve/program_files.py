"""Exported programs, and the same with something in them changed."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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
        inputs = [{"name": name, "arg": value, "kind": 1 if name in ("", "self") else 2} for name, value in arguments.items()]
        outputs = [{"as_tensor": {"name": "one_more"}}]
        graph["nodes"].append({"target": target, "inputs": inputs, "outputs": outputs, "metadata": {}, "name": "one_more"})
        graph["tensor_values"]["one_more"] = next(iter(graph["tensor_values"].values()))

    return edit
