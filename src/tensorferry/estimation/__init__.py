"""Will it fit, and what does it cost: any model on any machine, before anything is run."""

from tensorferry.estimation.estimate import Estimate, estimate
from tensorferry.estimation.results import LargestSize, MachineEstimate, StepEstimate

__all__ = ["Estimate", "LargestSize", "MachineEstimate", "StepEstimate", "estimate"]
