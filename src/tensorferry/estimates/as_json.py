"""An estimate as plain JSON values."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tensorferry.plan import Action, Lane

if TYPE_CHECKING:
    from tensorferry.estimates.estimate import Estimate, Limit, Outlook, Row

FORMAT = "tensorferry-estimate-1"


def estimate_json(estimate: "Estimate") -> dict[str, Any]:
    """The whole estimate; keys name their unit."""
    return {
        "format": FORMAT,
        "model": estimate.model,
        "inputs": [str(given) for given in estimate.inputs],
        "loss": estimate.loss,
        "optimizer": estimate.optimizer,
        "precision": estimate.precision,
        "policy": estimate.policy,
        "rows": [_row(row, estimate.axis) for row in estimate.rows],
    }


def _row(row: "Row", axis: str | None) -> dict[str, Any]:
    machine = asdict(row.machine) | {"usable_nbytes": row.machine.usable_nbytes}
    found = {"machine": machine} | _outlook(row.outlook) | {"timing": None if row.timing is None else asdict(row.timing)}
    if axis is not None:
        found["largest"] = {"axis": axis, "plain": _limit(row.largest_plain), "planned": _limit(row.largest)}
    return found


def _limit(limit: "Limit | None") -> dict[str, Any] | None:
    if limit is None or limit.outlook is None:
        return None
    return {"size": limit.size} | _outlook(limit.outlook)


def _outlook(outlook: "Outlook") -> dict[str, Any]:
    plan = outlook.plan
    planned = {f"{action}_nbytes": plan.nbytes(action) for action in Action} if plan is not None else {}
    return {
        "inputs": [str(given) for given in outlook.inputs],
        "plain_peak_nbytes": outlook.plain_peak_nbytes,
        "fits_plain": outlook.fits_plain,
        "fits": outlook.fits,
        "smallest_nbytes": outlook.smallest_nbytes,
        "plan": None if plan is None else planned | {"peak_nbytes": plan.peak_nbytes, "tier": plan.tier},
        "plain_seconds": outlook.trace.seconds,
        "step_seconds": outlook.step_seconds if outlook.fits else None,
        "overhead": outlook.overhead if outlook.fits else None,
        "compute_busy": outlook.busy(Lane.COMPUTE),
        "copy_out_busy": outlook.busy(Lane.OUT),
        "copy_in_busy": outlook.busy(Lane.IN),
        "samples_per_second": outlook.samples_per_second if outlook.fits else None,
        "bottleneck": outlook.bottleneck,
    }
