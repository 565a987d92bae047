"""What a training step of a model will need, before the step runs.

The model is copied with fake parameters, called with fake copies of the real inputs, and differentiated; nothing of the
real model is touched. The user's loss and optimizer are not known here, so this finds the floor of the model itself.
"""

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tensorferry.engines.torch.fake import FakeDevice, FakeStep, unchanged_randomness
from tensorferry.engines.torch.record import LayerNames, OpMode, Recorder
from tensorferry.engines.torch.standing import persistent_blocks
from tensorferry.engines.torch.swap import SavedTensors
from tensorferry.errors import NotTraceable
from tensorferry.trace import Trace


def forecast(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], min_nbytes: int) -> Trace:
    """The trace of forward and backward on these inputs; `NotTraceable` where fake tensors cannot follow."""
    if any(kind.__module__.startswith("keras.") for kind in type(model).__mro__):
        raise NotTraceable("Keras copies a model by saving it, which takes memory of its own")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with unchanged_randomness():
            with FakeCopyMode(fake_mode):
                fake_model = copy.deepcopy(model)
            _drop_hooks(fake_model)
            fake_args, fake_kwargs = tree_map_only(torch.Tensor, fake_mode.from_tensor, (args, kwargs))
            fake_device = FakeDevice(fake_mode, device)
            store = SavedTensors(fake_device, min_nbytes=min_nbytes, watchdog_seconds=1.0, tier="", tensor_type=FakeTensor)
            names = LayerNames(fake_model)
            with fake_mode, names.watching():
                step = FakeStep(store, Recorder(fake_model, fake_device, names))
                store.begin_step(step, persistent_blocks(fake_model))
                with torch.autograd.graph.saved_tensors_hooks(store.pack, store.unpack), OpMode(step.run_op):
                    output = fake_model(*fake_args, **fake_kwargs)
                    losses = [t.sum() for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
                    sum(losses[1:], losses[0]).backward()
            return step.trace()
    except Exception as error:  # whatever a user's forward can raise
        raise NotTraceable(f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _drop_hooks(model: torch.nn.Module) -> None:
    """A user's hooks run once a step and not once more for the forecast."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks):
            hooks.clear()
