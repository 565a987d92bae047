"""Trace + budget + machine -> a decision for every storage, and what it will cost."""

from tensorferry.plan.floor import Floor, find_floor
from tensorferry.plan.machine import Machine, TierSpeed
from tensorferry.plan.machines import find_machine, list_machines
from tensorferry.plan.plan import Action, Decision, Plan
from tensorferry.plan.planner import make_plan
from tensorferry.plan.roofline import time_trace
from tensorferry.plan.simulate import simulate
from tensorferry.plan.timeline import Lane, Span, Timeline, Work

__all__ = [
    "Action",
    "Decision",
    "Floor",
    "Lane",
    "Machine",
    "Plan",
    "Span",
    "TierSpeed",
    "Timeline",
    "Work",
    "find_floor",
    "find_machine",
    "list_machines",
    "make_plan",
    "simulate",
    "time_trace",
]
