"""SavedModels, vetted before TensorFlow loads them.

A SavedModel is a program: its ops can read and write any file, open connections and call Python. Which ops only compute is
known from TensorFlow's own register: those without state, and the stateful ones listed here. What saves and restores
checkpoints is in every SavedModel, and may be there as long as nothing that is loaded or served calls it.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from tensorferry.errors import BadModel
from tensorferry.serve.runtimes.tensorflow_compat import SavedModel, find_op
from tensorferry.serve.runtimes.trust import Untrusted, refuse

_CHECKPOINT_OPS = frozenset(("MergeV2Checkpoints", "RestoreV2", "SaveV2"))
_STATEFUL = (
    *("Assert", "Case", "CheckNumerics", "CheckNumericsV2", "DeviceIndex", "Empty", "GuaranteeConst", "If"),
    *("StatefulPartitionedCall", "While", "DestroyResourceOp", "DisableCopyOnRead", "MutexLock", "MutexV2", "ConsumeMutexLock"),
    *("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "ReadVariableOp", "VarHandleOp", "VarIsInitializedOp"),
    *("Variable", "VariableShape", "VariableV2", "TemporaryVariable", "ResourceGather", "ResourceGatherNd"),
    *("ResourceStridedSliceAssign", "StackCloseV2", "StackPopV2", "StackPushV2", "StackV2", "InitializeTableV2"),
    *("Multinomial", "NonDeterministicInts", "ParameterizedTruncatedNormal", "RngReadAndSkip", "RngSkip"),
    *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2", "StatelessRandomGetAlg", "TruncatedNormal"),
)
_STATEFUL_STARTS = (
    *("Random", "Stateful", "TensorArray", "ResourceScatter", "LookupTable", "HashTable", "MutableHashTable"),
    *("MutableDenseHashTable", "AnonymousHashTable", "AnonymousMutable", "CudnnRNN"),
)
_DATASETS = ("Dataset", "Iterator")  # pipelines that read from anywhere, in the names of ops
# arguments that name a file, an address or a Python function
_REACHING = {
    *("address", "chunk_file", "debug_ops_spec", "debug_urls", "filename", "filenames", "memory_region_name", "new_vocab_file"),
    *("old_vocab_file", "path", "shard_dir", "token"),
}
_REACHING_OPS = frozenset(("MatchingFiles",))
_PARTS = ("variables", "assets")  # of the folder, beside the graph


def load_saved_model(path: Path, trust: bool) -> Any:
    """What TensorFlow loads of a SavedModel's folder; raises BadModel for ops that do more than compute, unless trusted."""
    if trust:
        return tf.saved_model.load(str(path))
    # the graph that was vetted is the one that is loaded
    with tempfile.TemporaryDirectory(prefix="ferry-saved-model-") as folder:
        (Path(folder) / "saved_model.pb").write_bytes(vet_saved_model(path))
        for part in _PARTS:
            if (path / part).is_dir():
                (Path(folder) / part).symlink_to((path / part).resolve())
        return tf.saved_model.load(folder)


def vet_saved_model(path: Path) -> bytes:
    """The file of a SavedModel's graph, in which all that can run computes only."""
    file = path / "saved_model.pb"
    if not file.is_file():
        raise BadModel(f"{path.name} has no saved_model.pb, so TensorFlow cannot load it")
    data = file.read_bytes()
    model = SavedModel()
    try:
        model.ParseFromString(data)
        for graph in model.meta_graphs:
            _check_graph(graph)
        _check_assets(path)
    except DecodeError:
        raise BadModel(f"TensorFlow cannot load {path.name}: saved_model.pb is damaged") from None
    except Untrusted as found:
        raise refuse(path, found) from None
    return data


def _check_graph(graph: Any) -> None:
    for asset in graph.asset_file_def:
        if Path(asset.filename).name != asset.filename:
            raise Untrusted(f"the asset {asset.filename[:80]!r}, which is not in its folder")
    bodies = {function.signature.name: function for function in graph.graph_def.library.function}
    for function in bodies.values():
        _check_nodes(function.node_def)
    _check_nodes(graph.graph_def.node)
    runs = list(graph.object_graph_def.concrete_functions)
    nodes: list[Any] = []
    if not runs:  # a graph of TensorFlow 1, whose nodes run themselves
        nodes = list(_list_needed(graph.graph_def.node, _find_targets(graph)))
        restoring = list(_list_needed(graph.graph_def.node, [graph.saver_def.restore_op_name]))
        runs = [name for node in (*nodes, *restoring) for name in _list_called(node)]
        nodes += [node for node in restoring if node.op != "RestoreV2"]
    _check_checkpoints(nodes)
    for name in _list_reached(runs, bodies):
        _check_checkpoints(bodies[name].node_def)
    for function in bodies.values():
        if "api_implements" in function.attr:  # TensorFlow may put it in another's place
            _check_checkpoints(function.node_def)


def _check_nodes(nodes: Iterable[Any]) -> None:
    for node in nodes:
        definition = find_op(node.op)
        if definition is None:  # a function, or an op that TensorFlow does not have and says so
            continue
        reaches = {each.name for each in (*definition.input_arg, *definition.attr)} & _REACHING
        is_stateful = definition.is_stateful and node.op not in _STATEFUL and not node.op.startswith(_STATEFUL_STARTS)
        if node.op not in _CHECKPOINT_OPS and (
            is_stateful or reaches or node.op in _REACHING_OPS or any(word in node.op for word in _DATASETS)
        ):
            raise Untrusted(f"the op {node.op}")


def _check_checkpoints(nodes: Iterable[Any]) -> None:
    for node in nodes:
        if node.op in _CHECKPOINT_OPS:
            raise Untrusted(f"the op {node.op} where the model is loaded or run")


def _check_assets(path: Path) -> None:
    # a link among them could give away another file, line by line
    for part in _PARTS:
        for file in (path / part).rglob("*"):
            if not file.resolve().is_relative_to(path.resolve()):
                raise Untrusted(f"the link {part}/{file.name}")


def _find_targets(graph: Any) -> Iterator[str]:
    for signature in graph.signature_def.values():
        yield from (tensor.name for tensor in signature.outputs.values())
    for name in ("saved_model_main_op", "legacy_init_op"):
        yield from graph.collection_def[name].node_list.value


def _list_needed(nodes: Iterable[Any], targets: Iterable[str]) -> Iterator[Any]:
    """The nodes that have to run for the targets."""
    by_name = {node.name: node for node in nodes}
    waiting, seen = list(targets), set()
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name in by_name and name not in seen:
            seen.add(name)
            waiting += by_name[name].input
            yield by_name[name]


def _list_called(node: Any) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        yield from (function.name for function in (value.func, *value.list.func) if function.name)


def _list_reached(names: Iterable[str], bodies: dict[str, Any]) -> Iterator[str]:
    """The functions that are called by these, and by those that they call."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in seen:
            seen.add(name)
            waiting += [called for node in bodies[name].node_def for called in _list_called(node)]
            yield name
