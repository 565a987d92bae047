"""What ranks have written of a model, any number of ranks reads; and what makes no whole is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tensorferry.scaling.shard_files import ShardFiles, find_files, name_file


def _write(folder: Path, sizes: list[int], wholes: dict[str, Any] | None = None) -> torch.Tensor:
    """The weight of Linear(3, sum(sizes)) in rows, so many from each rank, with the state of an optimizer that has a count."""
    whole = torch.arange(3.0 * sum(sizes)).view(-1, 3)
    at = 0
    for rank, size in enumerate(sizes):
        part = {"part": whole[at : at + size].clone(), "at": [at, 0], "shape": list(whole.shape)}
        own = {"whole": torch.ones(sum(sizes))} if rank == 0 else None
        content = {
            "model": {"weight": part} | ({} if own is None else {"bias": own}),
            "optimizer": {0: {"mean": part} | ({} if rank else {"step": {"whole": torch.tensor(5.0)}})},
            "groups": [{"lr": 0.1}],
            "more": {"scale": {}},
        }
        torch.save(content, folder / name_file(rank, len(sizes)))
        at += size
    return whole


@pytest.mark.parametrize("sizes", [[4], [2, 2], [3, 1], [1, 1, 1, 1]])
def test_one_process_reads_what_any_number_has_written(sizes: list[int], tmp_path: Path) -> None:
    whole = _write(tmp_path, sizes)
    files, model = ShardFiles(tmp_path), torch.nn.Linear(3, 4)
    weights = files.read_weights(model)
    assert torch.equal(weights["weight"], whole)
    assert torch.equal(weights["bias"], torch.ones(4))
    state = files.read_optimizer(torch.optim.Adam(model.parameters()), model)
    assert torch.equal(state["state"][0]["mean"], whole)
    assert state["state"][0]["step"] == 5
    assert state["param_groups"] == [{"lr": 0.1}]


def test_a_file_that_is_missing_is_noticed(tmp_path: Path) -> None:
    _write(tmp_path, [2, 2])
    find_files(tmp_path)[1].unlink()
    with pytest.raises(ValueError, match="it has 1 of the files of 2 ranks"):
        ShardFiles(tmp_path)


def test_rows_that_nobody_has_written_are_noticed(tmp_path: Path) -> None:
    _write(tmp_path, [2, 2])
    first, second = find_files(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match="of weight a part is there twice"):
        ShardFiles(tmp_path).read_weights(torch.nn.Linear(3, 4))
    content = torch.load(second, weights_only=True)
    torch.save(content | {"model": {}}, second)
    with pytest.raises(ValueError, match="of weight 6 of 12 numbers are there"):
        ShardFiles(tmp_path).read_weights(torch.nn.Linear(3, 4))


def test_weights_of_another_shape_are_refused_before_memory_is_taken_for_them(tmp_path: Path) -> None:
    huge = {"part": torch.zeros(1, 1), "at": [0, 0], "shape": [10**6, 10**6]}
    torch.save({"model": {"weight": huge}, "optimizer": {}, "groups": []}, tmp_path / name_file(0, 1))
    with pytest.raises(ValueError, match=r"weight has the shape \(1000000, 1000000\), and the model's \(4, 3\)"):
        ShardFiles(tmp_path).read_weights(torch.nn.Linear(3, 4))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"weight": print}}, tmp_path / name_file(0, 1))
    with pytest.raises(Exception, match="Weights only load failed"):
        ShardFiles(tmp_path)
