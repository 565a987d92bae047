"""Every private name of torch that the server uses, and what for; a torch without one is refused before a model is loaded."""

import torch

from tensorferry.extras import check_attributes, private_names

with private_names("torch"):
    from torch._ops import OpOverload  # what a call in an exported program has to be

__all__ = ["OpOverload"]

IN_PLACE: dict[str, object] = {
    "_schema": torch.ops.aten.add.Tensor,  # what an op takes, to refuse what it would not check itself
    "_embedding_bag": torch.ops.aten,  # called with what was checked
    "_native_batch_norm_legit_no_training": torch.ops.aten,
    "_weight_norm": torch.ops.aten,
}
check_attributes("torch", IN_PLACE)
