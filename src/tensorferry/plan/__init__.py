"""Trace + budget + machine -> a decision for every storage, and what it will cost."""

from tensorferry.plan.floor import Floor, find_floor
from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.planner import make_plan, make_swap_all_plan
from tensorferry.plan.simulate import simulate
from tensorferry.plan.timeline import Lane, Span, Timeline, Work

__all__ = [
    "Action",
    "Decision",
    "Floor",
    "Lane",
    "Plan",
    "Span",
    "Timeline",
    "Work",
    "find_floor",
    "make_plan",
    "make_swap_all_plan",
    "simulate",
]
