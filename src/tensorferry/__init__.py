"""TensorFerry: train what does not fit, inside a memory budget in bytes.

The public names, loaded when first used, so that `import tensorferry` costs next to nothing and loads no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorferry.errors import (
    BadBudget,
    BadData,
    BadMachine,
    BadModel,
    BadOption,
    BadPlan,
    BadRecipe,
    BadRun,
    BadTier,
    BadTrace,
    BadUse,
    BudgetTooSmall,
    CopyStuck,
    FerryError,
    GraphFreed,
    MissingExtra,
    NotSupported,
    NotTraceable,
    RunFailed,
    SavedTensorModified,
    StreamWarning,
    TierFull,
    TierLost,
)

if TYPE_CHECKING:
    from tensorferry import datasets, estimators, feature_columns
    from tensorferry.engines import tensorflow
    from tensorferry.engines.capture import capture
    from tensorferry.engines.keras import LargeModel
    from tensorferry.engines.precision import precision
    from tensorferry.engines.torch.large_model import large_model
    from tensorferry.engines.torch.weight_files import load_onto_tier
    from tensorferry.estimation import ClusterEstimate, Estimate, estimate, estimate_cluster
    from tensorferry.machine import Machine, find_machine, list_machines
    from tensorferry.optimization import Engine, optimize
    from tensorferry.plan import Plan, Timeline, make_plan, simulate
    from tensorferry.report import Report
    from tensorferry.scaling.torch import clip_gradients, scale
    from tensorferry.tiers import this_machine
    from tensorferry.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "BadBudget",
    "BadData",
    "BadMachine",
    "BadModel",
    "BadOption",
    "BadPlan",
    "BadRecipe",
    "BadRun",
    "BadTier",
    "BadTrace",
    "BadUse",
    "BudgetTooSmall",
    "ClusterEstimate",
    "CopyStuck",
    "Engine",
    "Estimate",
    "FerryError",
    "GraphFreed",
    "LargeModel",
    "Machine",
    "MissingExtra",
    "NotSupported",
    "NotTraceable",
    "Plan",
    "Report",
    "RunFailed",
    "SavedTensorModified",
    "StreamWarning",
    "TierFull",
    "TierLost",
    "Timeline",
    "Trace",
    "capture",
    "clip_gradients",
    "datasets",
    "estimate",
    "estimate_cluster",
    "estimators",
    "feature_columns",
    "find_machine",
    "large_model",
    "list_machines",
    "load_onto_tier",
    "make_plan",
    "optimize",
    "precision",
    "scale",
    "simulate",
    "tensorflow",
    "this_machine",
]

_HOMES = {
    "ClusterEstimate": "tensorferry.estimation",
    "Engine": "tensorferry.optimization",
    "Estimate": "tensorferry.estimation",
    "LargeModel": "tensorferry.engines.keras",
    "Machine": "tensorferry.machine",
    "Plan": "tensorferry.plan",
    "Report": "tensorferry.report",
    "Timeline": "tensorferry.plan",
    "Trace": "tensorferry.trace",
    "capture": "tensorferry.engines.capture",
    "clip_gradients": "tensorferry.scaling.torch",
    "datasets": "tensorferry",
    "estimators": "tensorferry",
    "feature_columns": "tensorferry",
    "estimate": "tensorferry.estimation",
    "estimate_cluster": "tensorferry.estimation",
    "find_machine": "tensorferry.machine",
    "large_model": "tensorferry.engines.torch.large_model",
    "load_onto_tier": "tensorferry.engines.torch.weight_files",
    "list_machines": "tensorferry.machine",
    "make_plan": "tensorferry.plan",
    "optimize": "tensorferry.optimization",
    "precision": "tensorferry.engines.precision",
    "scale": "tensorferry.scaling.torch",
    "simulate": "tensorferry.plan",
    "tensorflow": "tensorferry.engines",
    "this_machine": "tensorferry.tiers",
}
_MODULES = {"datasets", "estimators", "feature_columns", "tensorflow"}  # public names that are modules themselves


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = import_module(f"{home}.{name}") if name in _MODULES else getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        from tensorferry.extras import MODULE_EXTRAS, missing_extra

        if error.name not in MODULE_EXTRAS:
            raise
        raise missing_extra(name, error.name, MODULE_EXTRAS[error.name]) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
