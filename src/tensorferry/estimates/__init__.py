"""Will it fit, and what does it cost: any model on any machine, before anything is run."""

from tensorferry.estimates.estimate import Estimate, Limit, Outlook, Row, estimate

__all__ = ["Estimate", "Limit", "Outlook", "Row", "estimate"]
