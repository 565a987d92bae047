"""What finds no device memory is done once more, when room has been made.

The bytes in use can be within the budget and an allocation fail all the same: the allocator takes memory from the device in
segments, and of one that is in use in part the rest serves only what fits into it; or somebody else uses the device too. Then
everything that can wait elsewhere is swapped out, the framework's free segments go back to the device, and the call is made
again, once; the next plan leaves more room. Only a call that has changed nothing may be made twice: an op that writes in
place, talks to other processes or is not torch's own is not, and a random one draws the same numbers again.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

from tensorferry.engines.torch.device import Device
from tensorferry.units import format_bytes

Result = TypeVar("Result")

# where somebody else has the memory, nobody knows how much: so much of what was in use is given up until there is enough
_LACKING_SHARE, _LEAST_LACKING_NBYTES = 1 / 16, 2 * 2**20
_RUNNING_STATISTICS = "running_mean"  # an argument that batch and instance norm write, although their schemas do not say so
ADVICE = "On CUDA, PYTORCH_ALLOC_CONF=expandable_segments:True lets torch's allocator use memory that is in pieces."


class OutOfMemoryRetry:
    """Makes calls again that found no memory, and keeps count of them."""

    def __init__(self, device: Device) -> None:
        self.make_room: Callable[[], None] = _do_nothing  # swaps out everything that can be
        self.num_retries = 0
        self.lacking_nbytes = 0  # the most that a plan had counted on and could not be had, since this was set to zero
        self._device = device

    def notes(self) -> list[str]:
        """What there is to say in a report."""
        times = "once" if self.num_retries == 1 else f"{self.num_retries} times"
        note = f"an allocation failed inside the budget and was made again with more room, {times}. {ADVICE}"
        return [note] if self.num_retries else []

    def allocate(self, call: Callable[[], Result]) -> Result:
        """What a call returns that changes nothing before it has its memory."""
        try:
            return call()
        except torch.OutOfMemoryError:
            pass  # and with it its traceback, whose frames hold tensors
        return self._call_again(call)

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failed: torch.OutOfMemoryError) -> Any:
        """Run an op again that has failed so, if it can be; what fails for good is the caller's."""
        if not may_run_again(func) or kwargs.get("generator") is not None:
            failed.add_note(f"ferry did not run {func.name()} again with more room, since it may have changed something already.")
            raise failed
        return self._call_again(lambda: func(*args, **kwargs))

    def _call_again(self, call: Callable[[], Result]) -> Result:
        self.num_retries += 1
        self._device.synchronize()
        share_nbytes = int(_LACKING_SHARE * self._device.resident_nbytes())
        self.lacking_nbytes = max(self.lacking_nbytes, self._device.unusable_nbytes(), share_nbytes, _LEAST_LACKING_NBYTES)
        self.make_room()
        self._device.empty_cache()
        try:
            return call()
        except torch.OutOfMemoryError as error:
            error.add_note(
                "ferry had swapped out all that can wait elsewhere and emptied torch's cache before this second attempt; "
                f"{format_bytes(self._device.unusable_nbytes())} were free in segments that are in use in part. {ADVICE}"
            )
            raise


@lru_cache(maxsize=4096)
def may_run_again(func: Any) -> bool:
    """Whether an op that has failed left everything as it was, but for a state of random numbers."""
    schema = func._schema
    return (
        func.namespace == "aten"
        and not schema.is_mutable
        and not any(argument.name == _RUNNING_STATISTICS for argument in schema.arguments)
    )


def _do_nothing() -> None:
    pass
