"""LightGBM's trees as one op of an ONNX graph.

A split of numbers asks "at most"; one of categories asks "is it in this set". A missing value goes where training sent it, and
where training saw none, LightGBM reads it as zero. What is not in a set goes right, and so does a missing category, code 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorferry.feature_columns.onnx_graph import TREES, OnnxGraph

_AT_MOST, _MEMBER = 0, 6  # of ONNX's ways to split
_SUM, _AS_IT_IS = 1, 0


@dataclass
class _Ensemble:
    """The nodes and leaves of all trees, as ONNX lists them."""

    roots: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    missing_left: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    left_is_leaf: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    right_is_leaf: list[int] = field(default_factory=list)
    members: list[float] = field(default_factory=list)  # of each set in the order of its nodes, a NaN behind each
    leaf_targets: list[int] = field(default_factory=list)
    leaf_values: list[float] = field(default_factory=list)

    def add_tree(self, tree: dict[str, Any], target: int) -> None:
        """One tree; its parents come before their children."""
        self.roots.append(len(self.features))
        if "leaf_value" in tree:  # a tree without a split: both ways lead to its leaf
            self._add_node(0, _AT_MOST, 0.0, 0)
            leaf = self._add_leaf(tree, target)
            self.left[-1], self.right[-1], self.left_is_leaf[-1], self.right_is_leaf[-1] = leaf, leaf, 1, 1
            return
        waiting = [(self._add_split(tree), tree)]
        while waiting:
            place, node = waiting.pop(0)
            for child, places, is_leaf in (
                (node["left_child"], self.left, self.left_is_leaf),
                (node["right_child"], self.right, self.right_is_leaf),
            ):
                is_leaf[place] = int("leaf_value" in child)
                places[place] = self._add_leaf(child, target) if is_leaf[place] else self._add_split(child)
                if not is_leaf[place]:
                    waiting.append((places[place], child))

    def _add_split(self, node: dict[str, Any]) -> int:
        if node["decision_type"] == "==":
            self.members += [*map(float, node["threshold"].split("||")), np.nan]
            return self._add_node(node["split_feature"], _MEMBER, 0.0, 0)
        threshold = float(node["threshold"])
        missing_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
        return self._add_node(node["split_feature"], _AT_MOST, threshold, int(missing_left))

    def _add_node(self, feature: int, mode: int, split: float, missing_left: int) -> int:
        self.features.append(feature)
        self.modes.append(mode)
        self.splits.append(split)
        self.missing_left.append(missing_left)
        for each in (self.left, self.left_is_leaf, self.right, self.right_is_leaf):
            each.append(0)
        return len(self.features) - 1

    def _add_leaf(self, leaf: dict[str, Any], target: int) -> int:
        self.leaf_targets.append(target)
        self.leaf_values.append(float(leaf["leaf_value"]))
        return len(self.leaf_values) - 1


def add_trees(graph: OnnxGraph, features: str, trees: Iterator[dict[str, Any]], num_targets: int) -> str:
    """The sums of all trees' leaves, (rows, targets); trees take turns with the targets."""
    made = _Ensemble()
    for place, tree in enumerate(trees):
        made.add_tree(tree, place % num_targets)
    sets = {"membership_values": graph.tensor(np.array(made.members))} if made.members else {}
    return str(
        graph.add(
            *("TreeEnsemble", features),
            domain=TREES,
            aggregate_function=_SUM,
            post_transform=_AS_IT_IS,
            n_targets=num_targets,
            tree_roots=made.roots,
            nodes_featureids=made.features,
            nodes_modes=graph.tensor(np.array(made.modes, np.uint8)),
            nodes_splits=graph.tensor(np.array(made.splits)),
            nodes_missing_value_tracks_true=made.missing_left,
            nodes_truenodeids=made.left,
            nodes_trueleafs=made.left_is_leaf,
            nodes_falsenodeids=made.right,
            nodes_falseleafs=made.right_is_leaf,
            leaf_targetids=made.leaf_targets,
            leaf_weights=graph.tensor(np.array(made.leaf_values)),
            **sets,
        )
    )
