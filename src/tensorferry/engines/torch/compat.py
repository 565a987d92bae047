"""Every private name of torch that this engine uses, and what for.

They are looked up when the engine is first imported, so that a torch without one of them is refused before anything runs. What
stands in `IN_PLACE` is used wherever it is needed, most of it for every op, where a call around it would cost time.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from tensorferry.extras import check_attributes, private_names

with private_names("torch"):
    from torch._C import (
        _accelerator_getAllocatorSettings as allocator_settings,  # whether its segments can grow
    )
    from torch._C import _AutoDispatchBelowAutograd as below_autograd  # ops that run again are not differentiated again
    from torch._C import _current_graph_task_id as current_graph_task_id  # whether a backward pass is under way
    from torch._C import (
        _select_conv_backend as select_conv_backend,  # whose kernel runs a convolution, which decides its workspace
    )
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,  # a fake tensor was asked for a value
        DynamicOutputShapeException,  # a shape depends on values
        FakeCopyMode,  # copies a model with fake parameters
        FakeTensor,  # a tensor with a shape and a storage, and no bytes
        FakeTensorMode,  # follows a step with such tensors
    )
    from torch.optim.optimizer import (
        _default_to_fused_or_foreach as default_to_fused_or_foreach,  # whether an update is made of multi-tensor ops
    )
    from torch.utils._python_dispatch import TorchDispatchMode  # sees every op below autograd
    from torch.utils._python_dispatch import (
        _disable_current_modes as disable_current_modes,  # for ops of ours that are no part of a step
    )
    from torch.utils._pytree import (
        tree_flatten,  # its leaves, and what they are the leaves of
        tree_leaves,  # what nested arguments hold
        tree_map,  # the same, replaced
        tree_map_only,  # the same, replaced where it is of a type
        tree_unflatten,  # nested again
    )

__all__ = [
    "COMPILED_MODULE",
    "COMPILER",
    "CPU_ATTENTION",
    "CPU_ATTENTION_BACKWARD",
    "GRADIENT_CLIPPERS",
    "OPTIMIZER_HOOKS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeCopyMode",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "allocator_settings",
    "any_compiled",
    "autograd_functions",
    "below_autograd",
    "block_from_weak",
    "clip_module",
    "compiler_is_loaded",
    "current_graph_task_id",
    "default_to_fused_or_foreach",
    "disable_current_modes",
    "hook_tables",
    "log_softmax_backward",
    "make_without_memory",
    "plain_step",
    "prelu",
    "prelu_backward",
    "saved_buffers",
    "select_conv_backend",
    "takes_gradients_early",
    "tensor_tables",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

_OP = torch.ops.aten.add.Tensor
_MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
COMPILER = "torch._dynamo"
COMPILED_MODULE = "OptimizedModule"  # what `torch.compile` makes of a module, in the compiler
autograd_functions: Any = torch._C._autograd  # torch.func asks it to turn saved-tensor hooks off
clip_module: Any = torch.nn.utils.clip_grad  # where clipping finds what it calls
GRADIENT_CLIPPERS = ("_get_total_norm", "_group_tensors_by_device_and_dtype")  # what clipping by norm, and by value, calls
OPTIMIZER_HOOKS = "_optimizer_"  # how the attributes begin in which an optimizer has its hooks

IN_PLACE: dict[str, object] = {
    "_base": torch.Tensor,  # what a tensor is a view of
    "_cdata": torch.UntypedStorage,  # a storage's address, by which blocks of memory are told apart
    "_engine_run_backward": torch.autograd,  # what `backward` and `grad` both call, replaced to see a backward pass fail
    "_overloadname": _OP,  # "Tensor" of aten::add.Tensor
    "_overloadpacket": _OP,  # an op without its overload, by which torch counts flops
    "_saved_tensors_hooks_disable": autograd_functions,  # what torch.func calls, replaced to say what to do instead
    "_schema": _OP,  # what an op takes, returns and writes
    "_should_skip_dynamo": TorchDispatchMode,  # overridden: the default wraps every op in a guard
    "_version": torch.Tensor,  # how often a tensor was written in place
}
_IN_FUNCTIONS: dict[str, object] = {
    "_make_wrapper_subclass": torch.Tensor,  # a tensor without memory
    "_buffers": torch.nn.Module,  # by name, to put fake ones there
    "_compiled_call_impl": torch.nn.Module,  # what `module.compile()` leaves
    "_log_softmax_backward_data": torch.ops.aten,  # whose gradient is made in the memory of what it reads
    "_non_persistent_buffers_set": torch.nn.Module,  # names of buffers that its state leaves out
    "_new_with_weak_ptr": torch.UntypedStorage,  # a storage from a weak reference to it
    "_optimizer_step_pre_hooks": torch.optim.Optimizer,  # one of those that OPTIMIZER_HOOKS is the beginning of
    "_parameters": torch.nn.Module,  # by name, to put fake ones there
    "_post_accumulate_grad_hooks": torch.Tensor,  # which get a gradient in the middle of backward
    "_prelu_kernel": torch.ops.aten,  # streamed slab by slab
    "_prelu_kernel_backward": torch.ops.aten,
    "_scaled_dot_product_flash_attention_for_cpu": torch.ops.aten,  # its flops are not among those that torch counts
    "_scaled_dot_product_flash_attention_for_cpu_backward": torch.ops.aten,
    **dict.fromkeys(_MODULE_HOOKS, torch.nn.Module),  # a user's, which are not to run for a forecast
}
check_attributes("torch", IN_PLACE | _IN_FUNCTIONS | dict.fromkeys(GRADIENT_CLIPPERS, clip_module))

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
CPU_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
log_softmax_backward: Any = torch.ops.aten._log_softmax_backward_data
prelu: Any = torch.ops.aten._prelu_kernel
prelu_backward: Any = torch.ops.aten._prelu_kernel_backward
block_from_weak = torch.UntypedStorage._new_with_weak_ptr
make_without_memory: Any = torch.Tensor._make_wrapper_subclass  # a tensor that has a shape alone


def tensor_tables(module: torch.nn.Module) -> list[dict[str, Any]]:
    """A module's own parameters and buffers, by name; what is put there is what it computes with."""
    return [module._parameters, module._buffers]


def saved_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own buffers that its state has, by name."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def hook_tables(module: torch.nn.Module) -> list[dict[int, Any]]:
    """A module's own hooks, a table for each kind."""
    return [getattr(module, name) for name in _MODULE_HOOKS]


def takes_gradients_early(parameter: torch.Tensor) -> bool:
    """Whether a hook of the user's gets the gradient in the middle of backward; such hooks step and free it."""
    hooks = parameter._post_accumulate_grad_hooks or {}
    return any(getattr(hook, "takes_gradient", True) for hook in hooks.values())


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer's update without the hooks on its step, which are for all parameters together."""
    step: Any = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)  # torch wraps it when the first one is made


def compiler_is_loaded() -> bool:
    """Whether something may have been compiled; loading the compiler to find out would be dear."""
    return COMPILER in sys.modules


def any_compiled(model: torch.nn.Module) -> bool:
    """Whether a module of the model was compiled; only where the compiler is loaded."""
    with private_names("torch"):
        from torch._dynamo.eval_frame import OptimizedModule
    return any(isinstance(module, OptimizedModule) or module._compiled_call_impl is not None for module in model.modules())
