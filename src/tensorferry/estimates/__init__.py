"""Will it fit, and what does it cost: any model on any machine, before anything is run."""

from tensorferry.estimates.estimate import Estimate, estimate
from tensorferry.estimates.result import Limit, Outlook, Row

__all__ = ["Estimate", "Limit", "Outlook", "Row", "estimate"]
