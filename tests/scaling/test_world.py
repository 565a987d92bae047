"""Who started this process, and as which of how many."""

import socket

import pytest

from tensorferry.errors import BadOption
from tensorferry.scaling.parallel import Parallel, find_parallel
from tensorferry.scaling.world import STARTED_BY, Cluster, World, find_starter, find_world, parse_nodes, read_operator

OF_TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}


def test_a_process_of_torchrun_knows_its_rank() -> None:
    assert find_world(OF_TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}) == World(3, 4, 1, 2, 2)
    assert find_world(OF_TORCHRUN) == World(3, 4, 1, 2)


@pytest.mark.parametrize("missing", OF_TORCHRUN)
def test_a_process_that_lacks_a_variable_is_alone(missing: str) -> None:
    assert find_world({name: value for name, value in OF_TORCHRUN.items() if name != missing}) is None


@pytest.mark.parametrize(("name", "value"), [("RANK", "4"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "-4"), ("LOCAL_WORLD_SIZE", "x")])
def test_ranks_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(BadOption, match=name):
        find_world(OF_TORCHRUN | {name: value})


def test_who_started_a_process_has_one_name_which_tells_nothing_of_it() -> None:
    assert find_starter({STARTED_BY: "ours"}) == "ours"
    assert find_starter({}) == find_starter({})
    assert len(find_starter({})) == 32
    assert socket.gethostname() not in find_starter({})


def test_an_operators_variables_say_what_to_start() -> None:
    asked = {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"}
    assert read_operator(asked) == Cluster(8, 4, 4, "job-node-0-0.job:29400")
    assert read_operator(asked | {"PET_NODE_RANK": "3"}) == Cluster(8, 4, 4, "job-node-0-0.job:29400", 3)
    assert read_operator({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "here"}) == Cluster(2)
    assert read_operator({}) is None


_LOST = {"PET_NNODES": "2", "PET_MASTER_ADDR": "here", "PET_NODE_RANK": "first"}


@pytest.mark.parametrize("asked", [{"PET_NPROC_PER_NODE": "auto"}, {"PET_NNODES": "2"}, {"PET_NNODES": "many"}, _LOST])
def test_what_an_operator_leaves_open_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=r"PET_|number of nodes"):
        read_operator(asked)


@pytest.mark.parametrize("text", ["", "0", "2:1", "a", "1:", "-1"])
def test_a_number_of_nodes_is_one_or_a_range(text: str) -> None:
    with pytest.raises(BadOption, match="number of nodes"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("text", "num_ranks", "expected"),
    [
        ("data", 4, Parallel(4, 1)),
        ("fsdp", 4, Parallel(1, 4)),
        ("data,fsdp=2", 8, Parallel(4, 2)),
        ("fsdp=4, data=2", 8, Parallel(2, 4)),
        ("tensor", 4, Parallel(1, 1, 4)),
        ("fsdp,tensor=2", 8, Parallel(1, 4, 2)),
        ("data,tensor=2,pipeline=2", 8, Parallel(2, 1, 2, 2)),
    ],
)
def test_a_way_without_a_number_takes_the_ranks_that_are_left(text: str, num_ranks: int, expected: Parallel) -> None:
    assert find_parallel(text, num_ranks) == expected


def test_ranks_that_share_rows_are_told_apart_by_their_place() -> None:
    ways = Parallel(data=2, fsdp=2, tensor=2, pipeline=2)
    places = [tuple(ways.locate(rank).values()) for rank in range(ways.num_ranks)]
    assert places == sorted(set(places))
    # one rank of the last stage for each part of the rows
    assert [places[rank] for rank in ways.row_leaders] == [(1, 0, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data=3", "needs 3 workers, there are 4"),
        ("data,fsdp=3", "needs a multiple of 3 workers"),
        ("data,fsdp", "say how many"),
        ("data,data", "twice"),
        ("data=0", "expected a number of ranks"),
        ("tensor=3", "needs 3 workers, there are 4"),
        ("piepline=2", "there is no way 'piepline'"),
    ],
)
def test_what_does_not_come_out_even_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        find_parallel(text, 4)
