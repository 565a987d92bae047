"""`ferry train`: a recipe becomes a run, or a run goes on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tensorferry.cli.numbers import positive

if TYPE_CHECKING:
    from tensorferry.scaling.world import Cluster
    from tensorferry.train.worker import Order

_AUTO_PARALLEL = "auto"
_AUTO = -1  # workers: as many as the machine has accelerators

_EXAMPLES = """examples:
  ferry train unet3d-brain --budget 1.5GiB --precision bf16 --set resolution=96 --steps 200 --out runs/brain
  ferry train bert-classify --data reviews.csv --from pretrained       fine-tune on your own file
  ferry train my.py:Recipe                                             a recipe of your own
  ferry train --resume runs/brain                                      continue after a stop, a kill or a crash
  ferry train bert-pretrain --workers 2 --parallel fsdp                two processes that share weights and work
  ferry train bert-pretrain --nodes 4 --rendezvous node0:29500         the same command on each of four machines

Without --every a run saves ten times. It evaluates at the end, and before that as often as costs no more than a tenth of
the work of training. SIGTERM and Ctrl-C finish the step, save, and exit with 143 and 130.
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "train",
        help="train a recipe, inside a memory budget if you like, or resume a run",
        description="Train a recipe. The run is a folder with checkpoints, metrics, the memory plan and a report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="a name from `ferry recipes`, package.module:Recipe or file.py:Recipe"
    )
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="continue this run with the options it was started with")
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="your file or folder (default: the data that comes with the recipe)"
    )
    parser.add_argument(
        "--from", dest="start", metavar="START", help="start from scratch or pretrained (default: the recipe's choice)"
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="how many steps to train, short for --set steps=N")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the recipe, such as batch=4; repeatable",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to put the run (default: runs/ and the recipe's name)")
    parser.add_argument("--force", action="store_true", help="overwrite the run in that folder")
    parser.add_argument(
        "--auto-resume", action="store_true", help="if that folder holds this run, go on with it: for jobs that are started again"
    )
    parser.add_argument("--every", type=positive, metavar="N", help="evaluate and save every N steps (default: see below)")
    parser.add_argument(
        "--async-save", action="store_true", help="write checkpoints while training goes on, from a copy of weights and state"
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="N", help="the same seed gives the same bits (default: drawn and written down)"
    )
    parser.add_argument(
        "--precision", metavar="NAME", help="fp32, bf16, fp16, or auto: what this hardware does fast (default: fp32)"
    )
    parser.add_argument(
        "--budget", metavar="BYTES", help='the most memory a step may hold, such as "1.5GiB", or "auto": most of what is free'
    )
    parser.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="train in N processes on this machine; auto: one for each accelerator (default: as --parallel says, or one)",
    )
    parser.add_argument(
        "--parallel",
        metavar="WAYS",
        help="how they share the work: data, fsdp, tensor=N, pipeline=N, products as fsdp=2,tensor=2, or auto: data or fsdp "
        "(default: data)",
    )
    parser.add_argument("--micro-batch", type=positive, metavar="N", help="rows that a pipeline's ranks compute at a time")
    parser.add_argument("--interleave", type=positive, metavar="N", help="stages that each rank of a pipeline has (default: 1)")
    parser.add_argument("--sync-norm", action="store_true", help="batch norm over the rows of all processes")
    parser.add_argument("--nodes", metavar="N", help="train on N machines, or on MIN:MAX; start the same command on each")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="where the machines meet: one of them, and a free port")
    parser.add_argument(
        "--restarts", type=int, default=3, metavar="N", help="how often to start again when a process dies (default: 3)"
    )
    parser.add_argument(
        "--wait",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="how long processes wait for one that hangs, before all start again (default: 300)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of text")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from tensorferry import BadOption, BadRun
    from tensorferry.fitting.folder import is_fitted
    from tensorferry.scaling.parallel import Pipelining, Split
    from tensorferry.train.start import TrainRequest
    from tensorferry.train.worker import Order

    pipelining = Pipelining(options.micro_batch, options.interleave or Pipelining.interleave)
    split = Split(options.parallel or Split.parallel, options.sync_norm, pipelining)
    if options.resume is not None:
        _refuse_with_resume(options)
        if is_fitted(options.resume):
            raise BadRun(f"{str(options.resume)!r} is a run of `ferry fit`, which has no steps to resume; fit the table again")
        order = Order(None, options.resume, options.recipe, split, options.json, wait_seconds=options.wait)
        return _train(options, order)
    if options.recipe is None:
        raise BadOption("name a recipe (ferry train RECIPE), or a run to resume (ferry train --resume FOLDER)")
    settings = dict(read_pair(text) for text in options.set)
    if options.steps is not None:
        settings["steps"] = str(options.steps)
    request = TrainRequest(
        recipe=options.recipe,
        settings=settings,
        start=options.start,
        data=options.data,
        out=options.out,
        force=options.force,
        every=options.every,
        seed=options.seed,
        precision=options.precision or TrainRequest.precision,
        budget=options.budget,
        async_save=options.async_save,
        command=options.command,
    )
    if options.auto_resume and options.force:
        raise BadOption("--auto-resume goes on with a run and --force overwrites it; leave one of them out")
    order = Order(
        request,
        split=split,
        as_json=options.json,
        goes_on=options.auto_resume,
        wait_seconds=options.wait,
    )
    return _train(options, order)


def _train(options: argparse.Namespace, order: "Order") -> int:
    """In this process, or in as many as were asked for."""
    from tensorferry import BadOption
    from tensorferry.scaling.world import find_world
    from tensorferry.train.progress import make_progress
    from tensorferry.train.start import begin, begin_or_resume, resume
    from tensorferry.train.status_server import post_progress
    from tensorferry.train.worker import train_as_rank, train_on

    if (world := find_world()) is not None:
        if order.split.parallel == _AUTO_PARALLEL:
            raise BadOption("--parallel auto chooses before processes start, and these are started already; say data or fsdp")
        return train_as_rank(world, _grow_batch(order, world.size, speaks=world.rank == 0))
    cluster = _cluster(options)
    if not cluster.is_alone:
        order = _choose_parallel(order, cluster)
        return train_on(cluster, _grow_batch(order, cluster.num_workers * cluster.max_nodes), options.restarts)
    for name in ("parallel", "sync_norm", "micro_batch", "interleave"):
        if getattr(options, name):
            raise BadOption(f"--{name.replace('_', '-')} is for several processes; say how many, as in --workers 2")
    progress = post_progress(make_progress(order.as_json))
    if order.request is not None:
        return (begin_or_resume if order.goes_on else begin)(order.request, progress)
    return resume(options.resume, progress, order.recipe)


def _grow_batch(order: "Order", num_ranks: int, *, speaks: bool = True) -> "Order":
    """The order with a row for each process, unless the user has said how many there are."""
    from dataclasses import replace

    from tensorferry.train.progress import make_progress
    from tensorferry.train.worker import grow_batch

    if (request := order.request) is None:
        return order
    settings, note = grow_batch(request.recipe, request.settings, request.start, order.split.parallel, num_ranks)
    if note and speaks:
        make_progress(order.as_json).say(note)
    return replace(order, request=replace(request, settings=settings))


def _choose_parallel(order: "Order", cluster: "Cluster") -> "Order":
    """The order with its `auto` settled."""
    from dataclasses import replace

    from tensorferry import BadOption

    if order.split.parallel != _AUTO_PARALLEL:
        return order
    if order.request is None:
        raise BadOption("--parallel auto chooses for a new run; say data or fsdp to resume one")
    from tensorferry.estimation.recipe_split import choose_parallel
    from tensorferry.train.progress import make_progress

    chosen, reason = choose_parallel(order.request, cluster)
    make_progress(order.as_json).say(f"parallel: {chosen} ({reason})")
    return replace(order, split=replace(order.split, parallel=chosen))


def _cluster(options: argparse.Namespace) -> "Cluster":
    from tensorferry import BadOption
    from tensorferry.scaling.parallel import count_ranks
    from tensorferry.scaling.world import Cluster, parse_nodes, read_operator

    if options.workers is None and options.nodes is None and (asked := read_operator()) is not None:
        return asked
    fewest, most = parse_nodes(options.nodes or "1")
    if most > 1 and options.rendezvous is None:
        raise BadOption(f"--nodes {options.nodes} needs --rendezvous HOST:PORT, where the machines meet")
    if most == 1 and options.rendezvous is not None:
        raise BadOption("--rendezvous is for several machines; say how many, as in --nodes 2")
    workers = _count_workers(options.workers)
    if options.workers is None and options.nodes is None and options.parallel not in (None, _AUTO_PARALLEL):
        workers = count_ranks(options.parallel) or workers
    return Cluster(workers, fewest, most, options.rendezvous)


def _count_workers(asked: int | None) -> int:
    if asked != _AUTO:
        return asked or 1
    import torch

    return torch.accelerator.device_count() or 1


def _refuse_with_resume(options: argparse.Namespace) -> None:
    from tensorferry import BadOption

    given = ("data", "start", "steps", "set", "out", "force", "auto_resume", "every", "async_save", "seed", "precision", "budget")
    unset = {"set": [], "force": False, "auto_resume": False, "async_save": False}
    names = [name for name in given if getattr(options, name) != unset.get(name)]
    wrong = [f"--{'from' if name == 'start' else name.replace('_', '-')}" for name in names]
    if wrong:
        raise BadOption(f"--resume uses the options the run was started with; leave out {', '.join(wrong)}, or start a new run")


def read_pair(text: str) -> tuple[str, str]:
    """The name and the value of `--set NAME=VALUE`."""
    from tensorferry import BadRecipe

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadRecipe(f"cannot read {text!r}; write --set name=value, as in --set batch=4")
    return name.strip(), value.strip()


def _workers(text: str) -> int:
    return _AUTO if text == "auto" else positive(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected a whole number from zero up to 2147483647, received {text!r}")
    return int(text)
