"""TensorFlow's own engine for several processes: a MultiWorkerMirroredStrategy whose workers are the ranks of a team.

The team's words go over torch's process group, as those of any other team; gradients over TensorFlow's collectives. Each rank has
one replica, and each replica one accelerator, if there are any. None of it has been run on an accelerator.
"""

import os
import socket
from typing import Any

import tensorflow as tf

from tensorferry.machine import count_cores
from tensorferry.scaling.team import Team
from tensorferry.scaling.world import World


def make_strategy(team: Team, world: World) -> Any:
    """The strategy that all ranks make together, before TensorFlow has run anything."""
    threads = max(1, count_cores() // world.local_size)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[world.local_rank], "GPU")
    host = "localhost" if world.local_size == world.size else _find_own_address(os.environ["MASTER_ADDR"])
    with socket.socket() as free:
        free.bind(("", 0))
        addresses = team.gather(f"{host}:{free.getsockname()[1]}")  # all have one, and none is the same, before it is let go
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}), task_type="worker", task_id=world.rank, rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _find_own_address(other: str) -> str:
    """This machine's, as it is seen from another one."""
    family, kind, protocol, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as towards:
        towards.connect(address)  # of datagrams: nothing is sent
        found = str(towards.getsockname()[0])
    return f"[{found}]" if ":" in found else found
