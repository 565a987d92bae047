"""Every private name of torch that several processes need, and what for; a torch without one is refused before they start."""

from typing import Any

import torch
import torch.multiprocessing

from tensorferry.extras import check_attributes, private_names

with private_names("torch"):
    from torch.distributed.distributed_c10d import _set_pg_timeout as set_group_timeout  # longer than anybody waits for a word
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # which part of the whole a shard is

__all__ = ["compute_local_shape_and_global_offset", "count_writes", "end_with_parent", "set_group_timeout"]

_processes: Any = torch.multiprocessing  # what it adds when it is imported is declared nowhere
check_attributes("torch", {"_version": torch.Tensor, "_prctl_pr_set_pdeathsig": _processes})
end_with_parent = _processes._prctl_pr_set_pdeathsig  # and by which signal


def count_writes(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place."""
    return tensor._version
