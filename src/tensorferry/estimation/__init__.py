"""Will it fit, and what does it cost: any model on any machine, before anything is run."""

from tensorferry.estimation.cluster import ClusterEstimate, estimate_cluster
from tensorferry.estimation.estimate import Estimate, estimate
from tensorferry.estimation.results import LargestSize, MachineEstimate, StepEstimate

__all__ = [
    "ClusterEstimate",
    "Estimate",
    "LargestSize",
    "MachineEstimate",
    "StepEstimate",
    "estimate",
    "estimate_cluster",
]
