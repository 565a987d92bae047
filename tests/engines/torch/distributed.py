"""One rank of a two-process training run; prints the digest of what it leaves.

Arguments: "ddp" or "fsdp2", a folder to meet in, "ferry" or "plain".
"""

import hashlib
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from cases import Residual, classify, images
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tensorferry as ferry


def main(wrapper: str, folder: str, with_ferry: bool) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{wrapper}-{with_ferry}", rank=rank, world_size=2)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: torch.nn.Module = Residual()
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model.body)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    digest = hashlib.sha256()
    context = ferry.large_model(model, budget="2GiB", min_nbytes=512) if with_ferry else nullcontext()
    with context:
        for step in range(4):
            for loss in classify(model, images(10 * rank + step), optimizer):
                digest.update(loss.numpy().tobytes())
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().contiguous().numpy().tobytes())
    dist.barrier()
    print(digest.hexdigest(), flush=True)
    os._exit(0)  # gloo's own clean-up hangs now and then, with or without ferry


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "ferry")
