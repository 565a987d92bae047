"""Every error that TensorFerry raises on purpose.

FerryError
├── BadBudget            the budget is not a number of bytes
├── BudgetTooSmall       one step cannot run in the budget
├── BadTier              no such tier, or its folder cannot be used
├── TierFull             the tier has no room for what the plan puts there
├── TierLost             the tier failed under way: removed, unmounted, I/O error
├── CopyStuck            a copy did not finish in time
├── SavedTensorModified  a tensor was changed in place while autograd still needs it
├── GraphFreed           backward ran through a graph whose saved tensors are gone
├── BadTrace             a trace that cannot be read, or contradicts itself
├── BadPlan              a plan that cannot be read, or belongs to another trace
├── NotTraceable         a step that cannot be traced without running it
├── NotSupported         a back end, an option or a version of a framework that cannot be planned
├── BadUse               a call out of order: a context entered twice, a report before there is one
├── BadMachine           no such machine, or an entry that cannot be read
├── BadModel             no such model, or one that cannot be built, called or served as asked
├── BadOption            an option of a command that cannot be used
├── BadRecipe            no such recipe or setting, or one that cannot be loaded
├── BadData              a source of data that cannot be used
├── BadRun               a run's folder that is missing, in the way, or of another recipe or version
├── RunFailed            training had to stop: the loss is NaN, the disk is full
└── MissingExtra         an optional package is not installed
"""


class FerryError(Exception):
    """The root of the tree: catching it catches every error raised on purpose."""


class BadBudget(FerryError, ValueError):
    """The budget is not a positive number of bytes."""


class BudgetTooSmall(FerryError):
    """One step cannot run in the budget, whatever is swapped or recomputed.

    `smallest_nbytes` is a budget that works, the smallest that is known to; None where none is known. `streamed_nbytes` is one
    that is expected to work where steps are streamed, within rounding; None where that would not need less.
    """

    def __init__(self, message: str, smallest_nbytes: int | None, streamed_nbytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_nbytes = smallest_nbytes
        self.streamed_nbytes = streamed_nbytes


class StreamWarning(UserWarning):
    """Steps are streamed: their results are plain torch's within rounding, not bit for bit."""


class BadTier(FerryError, ValueError):
    """No such tier, or its folder is missing or not writable."""


class TierFull(FerryError):
    """The tier has no room left."""


class TierLost(FerryError):
    """The tier failed while it held bytes."""


class CopyStuck(FerryError):
    """A copy did not finish in time."""


class SavedTensorModified(FerryError, RuntimeError):
    """A tensor that backward needs was modified in place after it was saved."""


class GraphFreed(FerryError, RuntimeError):
    """Backward ran a second time through a graph that was not retained."""


class BadTrace(FerryError, ValueError):
    """A trace that cannot be read, or contradicts itself."""


class BadPlan(FerryError, ValueError):
    """A plan that cannot be read, or belongs to another trace."""


class NotTraceable(FerryError):
    """A step that cannot be followed without running it."""


class NotSupported(FerryError):
    """A back end, a strategy, an option or a version of a framework with which a step cannot be planned."""


class BadUse(FerryError, RuntimeError):
    """A call out of order: a context that is entered twice, a report before there is anything to tell."""


class BadMachine(FerryError, ValueError):
    """No such machine, or an entry that cannot be read."""


class BadModel(FerryError, ValueError):
    """No such model, or one that cannot be built, called or served as asked."""


class BadOption(FerryError, ValueError):
    """An option of a command that cannot be used."""


class BadRecipe(FerryError, ValueError):
    """No such recipe or setting, or a recipe that cannot be loaded."""


class BadData(FerryError, ValueError):
    """A source of data that cannot be used."""


class BadRun(FerryError, ValueError):
    """A run's folder that is missing, in the way, or of another recipe or version."""


class RunFailed(FerryError, RuntimeError):
    """Training had to stop; what was saved before stays."""


class MissingExtra(FerryError, ImportError):
    """An optional package is not installed."""
