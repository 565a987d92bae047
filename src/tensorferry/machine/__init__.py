"""Machines: what they have, how long a step takes on them, and what this one has to give."""

from tensorferry.machine.limits import free_memory_nbytes, memory_nbytes
from tensorferry.machine.machine import Link, Machine, TierSpeed, link_to
from tensorferry.machine.measure import count_cores, find_processor
from tensorferry.machine.networks import Network, find_network, list_networks
from tensorferry.machine.roofline import time_trace
from tensorferry.machine.table import find_machine, list_machines

__all__ = [
    "Link",
    "Machine",
    "Network",
    "TierSpeed",
    "count_cores",
    "find_machine",
    "find_network",
    "find_processor",
    "free_memory_nbytes",
    "link_to",
    "list_machines",
    "list_networks",
    "memory_nbytes",
    "time_trace",
]
