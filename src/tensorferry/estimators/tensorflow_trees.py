"""ONNX's TreeEnsemble in TensorFlow's ops: all rows go down all trees together, a level a step."""

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_MEMBER = 6  # of ONNX's ways to split: is the value in this set


def sum_trees(features: Any, **trees: Any) -> Any:
    """The sums of the leaves that each row comes to, (rows, targets)."""
    num_nodes = len(trees["nodes_featureids"])
    # a leaf stands behind all nodes, and is its own child
    num_leaves = len(trees["leaf_targetids"])
    leaves = num_nodes + np.arange(num_leaves)
    left, right = (
        np.concatenate([np.where(trees[is_leaf], num_nodes, 0) + np.array(trees[ids]), leaves])
        for ids, is_leaf in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs"))
    )

    def with_leaves(values: Any, dtype: Any) -> Any:
        return tf.constant(np.concatenate([np.array(values, dtype), np.zeros(num_leaves, dtype)]))

    feature = with_leaves(trees["nodes_featureids"], np.int64)
    split = with_leaves(trees["nodes_splits"], np.float64)
    missing_left = with_leaves(trees["nodes_missing_value_tracks_true"], bool)
    is_set = with_leaves(trees["nodes_modes"] == _MEMBER, bool)
    members, width = _list_members(trees)

    node = tf.tile(tf.constant([trees["tree_roots"]], tf.int64), [tf.shape(features)[0], 1])
    for _ in range(_find_depth(left, right, np.array(trees["tree_roots"]), num_nodes)):
        value = tf.gather(features, tf.gather(feature, node), batch_dims=1)
        goes_left = value <= tf.gather(split, node)
        if len(members):
            goes_left = tf.where(tf.gather(is_set, node), _is_member(members, width, node, value), goes_left)
        goes_left = tf.where(tf.math.is_nan(value), tf.gather(missing_left, node), goes_left)
        node = tf.where(goes_left, tf.gather(tf.constant(left, tf.int64), node), tf.gather(tf.constant(right, tf.int64), node))
    reached = node - num_nodes
    targets = tf.constant(_find_targets(trees), tf.int64)
    values = tf.gather(tf.constant(trees["leaf_weights"], tf.float64), reached)
    return tf.transpose(tf.math.unsorted_segment_sum(tf.transpose(values), targets, trees["n_targets"]))


def _list_members(trees: dict[str, Any]) -> tuple[NDArray[np.int64], int]:
    """Every node's set as keys in ascending order: the node's number times a width, and a member; and that width."""
    values = np.asarray(trees.get("membership_values", []), np.float64)
    nodes = np.flatnonzero(np.asarray(trees["nodes_modes"]) == _MEMBER)
    owner = nodes[np.minimum(np.cumsum(np.isnan(values)) - np.isnan(values), len(nodes) - 1)] if len(nodes) else nodes
    known = ~np.isnan(values)
    width = int(values[known].max(initial=0)) + 2
    return np.sort(owner[known] * width + values[known].astype(np.int64)) if len(nodes) else np.zeros(0, np.int64), width


def _is_member(members: NDArray[np.int64], width: int, node: Any, value: Any) -> Any:
    # whatever is larger than all members is in no set, as the last place of a node's is
    code = tf.cast(
        tf.clip_by_value(tf.where(tf.math.is_nan(value), tf.cast(width - 1, value.dtype), value), -1, width - 1), tf.int64
    )
    inside = (code >= 0) & (tf.cast(code, value.dtype) == value)
    key = node * width + tf.maximum(code, 0)
    places = tf.minimum(tf.searchsorted(tf.constant(members), tf.reshape(key, [-1])), len(members) - 1)
    return inside & (tf.reshape(tf.gather(tf.constant(members), places), tf.shape(key)) == key)


def _find_depth(left: NDArray, right: NDArray, roots: NDArray, num_nodes: int) -> int:
    """How many splits the longest way down has."""
    depth, level = 0, roots
    while len(level := np.unique(level[level < num_nodes])):
        level, depth = np.concatenate([left[level], right[level]]), depth + 1
    return depth


def _find_targets(trees: dict[str, Any]) -> list[int]:
    """The target of each tree, which is that of all its leaves; trees take turns."""
    return [place % trees["n_targets"] for place in range(len(trees["tree_roots"]))]
