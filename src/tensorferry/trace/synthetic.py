"""Traces made up from numbers: to try a machine, a budget or the planner without a model.

The step is a chain of layers (convolution, norm, relu), its backward, and one optimizer op a layer. The convolution's and the
relu's output of every layer are saved for backward; the norm's output dies at once, so that recomputing the relu's output
takes two cheap ops. Convolutions are not replayable.
"""

import random
from collections.abc import Sequence

from tensorferry.trace.trace import Kind, Op, Phase, Storage, Trace

OPS_PER_LAYER = 7  # three forward, three backward, one optimizer


def make_chain_trace(
    num_layers: int,
    *,
    activation_nbytes: int = 32 * 2**20,
    weight_nbytes: int = 2**20,
    heavy_seconds_per_byte: float = 1e-10,
    cheap_seconds_per_byte: float = 4e-12,
    varied: bool = True,
    seed: int = 0,
) -> Trace:
    """A training step of `num_layers` layers whose activations have about `activation_nbytes` each.

    An op's running time is its seconds a byte (heavy: convolution, cheap: norm and relu) times the bytes of the layer's
    activation, and twice that in backward. `varied=False` gives every layer the same size.

    >>> len(make_chain_trace(10).movable)
    19
    """
    rng = random.Random(seed)
    sizes = [int(activation_nbytes * (rng.uniform(0.25, 1.75) if varied else 1)) for _ in range(num_layers)]
    step = TraceBuilder()
    weights = [step.storage(weight_nbytes, Kind.PARAMETER, f"weight {k}") for k in range(num_layers)]
    batch = x = step.storage(activation_nbytes, Kind.INPUT, "batch")
    saved: list[tuple[int, int, int]] = []  # each layer's input, convolution output and relu output

    for k, nbytes in enumerate(sizes):
        heavy, cheap = nbytes * heavy_seconds_per_byte, nbytes * cheap_seconds_per_byte
        conv, norm, relu = (step.storage(nbytes, Kind.ACTIVATION, f"{name} {k}") for name in ("conv", "norm", "relu"))
        step.op(f"conv {k}", Phase.FORWARD, heavy, (x, weights[k]), (conv,), workspace_nbytes=nbytes // 4)
        step.op(f"norm {k}", Phase.FORWARD, cheap, (conv,), (norm,), replayable=True)
        step.op(f"relu {k}", Phase.FORWARD, cheap, (norm,), (relu,), replayable=True)
        saved.append((x, conv, relu))
        x = relu

    gradient: Sequence[int] = ()
    weight_gradients = []
    for k, (x, conv, relu) in reversed(list(enumerate(saved))):
        heavy, cheap = 2 * sizes[k] * heavy_seconds_per_byte, 2 * sizes[k] * cheap_seconds_per_byte
        g_relu, g_norm = (step.storage(sizes[k], Kind.GRADIENT, f"{name} {k} gradient") for name in ("relu", "norm"))
        g_weight = step.storage(weight_nbytes, Kind.GRADIENT, f"weight {k} gradient")
        g_x = [] if x == batch else [step.storage(sizes[k - 1], Kind.GRADIENT, f"relu {k - 1} output gradient")]
        step.op(f"relu backward {k}", Phase.BACKWARD, cheap, (relu, *gradient), (g_relu,))
        step.op(f"norm backward {k}", Phase.BACKWARD, cheap, (conv, g_relu), (g_norm,))
        inputs, outputs = (x, weights[k], g_norm), (*g_x, g_weight)
        step.op(f"conv backward {k}", Phase.BACKWARD, heavy, inputs, outputs, workspace_nbytes=sizes[k] // 2)
        gradient = g_x
        weight_gradients.append((weights[k], g_weight))

    for weight, g_weight in weight_gradients:
        seconds = 2 * weight_nbytes * cheap_seconds_per_byte
        step.op("optimizer", Phase.OPTIMIZER, seconds, (weight, g_weight), (weight,))
    return step.finish()


class TraceBuilder:
    """A step as it is written down, storages and ops in any order that works; `finish` finds out when storages live.

    Parameters and inputs are there before the step and outlive it. An activation that a forward op makes and a later phase reads
    counts as saved for backward.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.blocks: list[tuple[int, Kind, str]] = []

    def storage(self, nbytes: int, kind: Kind, label: str = "") -> int:
        """Add a storage; returns its position."""
        self.blocks.append((nbytes, kind, label))
        return len(self.blocks) - 1

    def op(
        self,
        name: str,
        phase: Phase,
        seconds: float,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        workspace_nbytes: int = 0,
        replayable: bool = False,
    ) -> None:
        """Add the next op."""
        self.ops.append(Op(name, phase, seconds, inputs, outputs, workspace_nbytes=workspace_nbytes, replayable=replayable))

    def finish(self, overhead_nbytes: int = 0) -> Trace:
        """The trace of everything added."""
        writers: list[list[int]] = [[] for _ in self.blocks]
        uses: list[list[int]] = [[] for _ in self.blocks]
        for i, op in enumerate(self.ops):
            for s in op.inputs:
                uses[s].append(i)
            for s in op.outputs:
                writers[s].append(i)
        storages = tuple(self._live(*block, writers[s], uses[s]) for s, block in enumerate(self.blocks))
        return Trace(tuple(self.ops), storages, overhead_nbytes, framework="none", device="none", measured=False).check()

    def _live(self, nbytes: int, kind: Kind, label: str, writers: list[int], uses: list[int]) -> Storage:
        if kind in (Kind.PARAMETER, Kind.INPUT):
            return Storage(nbytes, kind, tuple(writers), tuple(uses), None, label=label)
        early = [i for i in uses if self.ops[i].phase is Phase.FORWARD]
        late = [i for i in uses if self.ops[i].phase is not Phase.FORWARD]
        freed_after = max([*writers, *uses])
        if kind is not Kind.ACTIVATION or not late:
            return Storage(nbytes, kind, tuple(writers), tuple(uses), freed_after, label=label)
        return Storage(
            nbytes,
            kind,
            tuple(writers),
            tuple(uses),
            freed_after,
            saved_at=writers[-1] + 1,
            idle_after=max([writers[-1], *early]),
            wanted_at=late[0],
            label=label,
        )
