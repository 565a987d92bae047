"""What a collective costs on two tiers of links: between the GPUs of a node, and between nodes.

The model is Hockney's (1994): a message takes a latency plus its bytes over the bandwidth. A collective is built of messages, and
of the ways to build it the quickest counts, as NCCL chooses. For S bytes over n ranks on m nodes with g = n / m ranks a node:

    ring      each rank sends 2 (n-1)/n S in 2 (n-1) messages             Patarasuk & Yuan 2009, bandwidth-optimal
    tree      2 S, in 2 log2(m) messages between nodes                    Sanders, Speck & Träff 2009, two trees at once
    tiers     reduce-scatter in the node, all-reduce of the parts between nodes, all-gather in the node   Thakur et al. 2005

Chunks follow each other, so the tiers work at the same time: bandwidth terms count as the larger of both tiers, latencies add up.
A node's ports are shared by the groups that have ranks on it: with eight GPUs and groups of one GPU a node, each gets an eighth.

Limits: no contention above the node's ports (a fat tree without oversubscription), no reduction in the switch, no protocol
switches by size, and traffic takes nothing from compute that runs beside it.
"""

from dataclasses import dataclass
from math import ceil, gcd, log2

from tensorferry.machine import Network


@dataclass(frozen=True, slots=True)
class ClusterLinks:
    """Both tiers as collectives reach them."""

    gpus_per_node: int
    inside_nbytes_per_second: float  # of a GPU, one way
    inside_latency_seconds: float
    node_nbytes_per_second: float  # of all ports of a node, one way
    between_latency_seconds: float


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate: how many, and how many of them share a node."""

    num_ranks: int
    per_node: int

    @property
    def num_nodes(self) -> int:
        """The nodes that the group is on."""
        return self.num_ranks // self.per_node


def make_links(inside: Network, between: Network, gpus_per_node: int) -> ClusterLinks:
    """Both tiers of nodes with so many GPUs."""
    return ClusterLinks(
        gpus_per_node,
        inside.reached_nbytes_per_second,
        inside.latency_seconds,
        between.reached_nbytes_per_second * between.ports_of(gpus_per_node),
        between.latency_seconds,
    )


def place_group(num_ranks: int, stride: int, gpus_per_node: int) -> RankGroup:
    """Where the ranks 0, stride, 2 stride, ... are, if ranks fill node after node.

    >>> place_group(num_ranks=64, stride=8, gpus_per_node=16)  # data parallel around groups of eight
    RankGroup(num_ranks=64, per_node=2)
    """
    return RankGroup(num_ranks, gcd(num_ranks, max(1, gpus_per_node // stride)))


def all_reduce_seconds(nbytes: float, group: RankGroup, links: ClusterLinks) -> float:
    """Every rank gets the sum of all ranks' bytes.

    >>> from tensorferry.machine import find_network
    >>> links = make_links(find_network("nvlink3"), find_network("ib-hdr"), 8)
    >>> all_reduce_seconds(2**30, RankGroup(1, 1), links)
    0.0
    """
    if group.num_ranks == 1 or not nbytes:
        return 0.0
    inside = _inside(2 * nbytes, group, links)
    inside_latency = 2 * (group.per_node - 1) * links.inside_latency_seconds
    num_nodes = group.num_nodes
    if num_nodes == 1:
        return inside + inside_latency
    port_seconds = 2 * nbytes / _share_of_ports(group, links)
    hop = links.between_latency_seconds
    ring = max(inside, port_seconds * (num_nodes - 1) / num_nodes) + 2 * (num_nodes - 1) * hop
    tree = max(inside, port_seconds) + 2 * ceil(log2(num_nodes)) * hop
    return min(ring, tree) + inside_latency


def gather_seconds(nbytes: float, group: RankGroup, links: ClusterLinks) -> float:
    """An all-gather to `nbytes`, or a reduce-scatter of as many: half of a ring all-reduce."""
    if group.num_ranks == 1 or not nbytes:
        return 0.0
    num_nodes = group.num_nodes
    latency = (group.per_node - 1) * links.inside_latency_seconds
    seconds = _inside(nbytes, group, links)
    if num_nodes > 1:
        seconds = max(seconds, nbytes * (num_nodes - 1) / num_nodes / _share_of_ports(group, links))
        latency += (num_nodes - 1) * links.between_latency_seconds
        # recursive doubling moves the same bytes in fewer messages where those are small
        doubling = ceil(log2(num_nodes)) * links.between_latency_seconds + nbytes / _share_of_ports(group, links)
        return min(seconds + latency, max(seconds, doubling) + (group.per_node - 1) * links.inside_latency_seconds)
    return seconds + latency


def send_seconds(nbytes: float, stride: int, links: ClusterLinks) -> float:
    """One rank's bytes to the rank `stride` further on, while all ranks of its node do the same."""
    if stride < links.gpus_per_node:
        return nbytes / links.inside_nbytes_per_second + links.inside_latency_seconds
    return nbytes * links.gpus_per_node / links.node_nbytes_per_second + links.between_latency_seconds


def _inside(nbytes: float, group: RankGroup, links: ClusterLinks) -> float:
    return nbytes * (group.per_node - 1) / group.per_node / links.inside_nbytes_per_second


def _share_of_ports(group: RankGroup, links: ClusterLinks) -> float:
    return links.node_nbytes_per_second * min(1.0, group.per_node / links.gpus_per_node)
