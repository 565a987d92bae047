"""The rules of ops, which their files add when they are imported."""

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]  # takes a streamer and the op's arguments; NotImplemented: the op is run whole
RULES: dict[str, Rule] = {}  # by the name of an op without its overload
SEEDS: set[str] = set()  # ops whose outputs may be too large though no input is streamed
_POINTWISE: list[Rule] = []  # the one rule of all ops that are pointwise; it takes the op itself besides
_POINTWISE_BACKWARD = {f"{name}_backward" for name in ("leaky_relu", "elu", "hardtanh", "hardswish", "mish", "silu", "gelu")}


def rule(*names: str, seeds: bool = False) -> Callable[[Rule], Rule]:
    """The rule of these ops; `seeds`: it is asked even where no argument is streamed."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        SEEDS.update(names if seeds else ())
        return function

    return add


def pointwise_rule(function: Rule) -> Rule:
    """The rule of every pointwise op that has none of its own."""
    _POINTWISE[:] = [function]
    return function


def run_by_rule(streamer: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op's rule gives; NotImplemented where it has none."""
    name = op_name(func)
    if _writes_to_another(func):
        return NotImplemented
    if name in RULES:
        return RULES[name](streamer, *args, **kwargs)
    return _POINTWISE[0](streamer, func, args, kwargs) if is_pointwise(func) else NotImplemented


def _writes_to_another(func: Any) -> bool:
    """Whether it is told by keyword where its result is to be written."""
    return any(argument.kwarg_only and argument.alias_info is not None for argument in func._schema.arguments)


def is_pointwise(func: Any) -> bool:
    """Whether an op makes each number from the numbers at its place, and the same ones whenever it runs."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return torch.Tag.pointwise in func.tags or op_name(func) in _POINTWISE_BACKWARD


def can_stream(name: str) -> bool:
    """Whether an op of that name, without its overload, has a rule."""
    packet = getattr(torch.ops.aten, name, None)
    return name in RULES or (packet is not None and any(is_pointwise(getattr(packet, each)) for each in packet.overloads()))


def op_name(func: Any) -> str:
    """An op's name without its overload."""
    return str(func._schema.name).removeprefix("aten::")
