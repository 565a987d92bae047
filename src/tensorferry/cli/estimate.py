"""`ferry estimate`: will this model train on that machine, and what does it cost?"""

import argparse
import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

_EXAMPLES = """examples:
  ferry estimate resnet50 --batch 512 --on v100-16gb-nvlink2
  ferry estimate unet3d --input 1x1x192x192x192 --on v100-16gb-pcie3 --on a100-40gb --on rtx4090
  ferry estimate mypackage.net:build --input 8x3x512x512 --optimizer adam --precision bf16 --on h100-80gb --max batch
  ferry estimate resnet50 --on v100-16gb-nvlink2 --max batch --html plan.html --json
  ferry estimate bert-large --on file.yaml --set link_out=25GB/s --set link_in=25GB/s
on a cluster:
  ferry estimate bert-large --gpus 256 --on a100-80gb --batch 64k --precision fp16
  ferry estimate gpt-8.3b --gpus 512 --per-node 16 --on v100-32gb-nvlink2 --network 8xib-edr --parallel tensor=8,data=64
  ferry estimate gpt-175b --gpus 1024 --on a100-80gb --parallel auto --batch 1536 --precision bf16 --recompute --html page.html
  ferry estimate bert-large --gpus 64 --on h100-80gb --parallel fsdp --samples 100m --price 2.50

models: resnet50, resnet152, vgg16, googlenet, unet3d, bert-base, bert-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b,
gpt3-13b, gpt-125m, gpt-350m, gpt-1.2b, gpt-2.5b, gpt-4.2b, gpt-8.3b, gpt-22b, gpt-175b, or your own function that returns an
nn.Module or a Keras model. machines: see `ferry machines`, networks: `ferry machines --networks`.
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "estimate",
        help="will it fit? predict memory and time of a training step on any machine",
        description="Predict a training step on machines you do not have: memory, seconds, what is kept, swapped, recomputed,\n"
        'and how far batch or resolution can go. Nothing runs and nothing is allocated, except on "this", your own\n'
        "computer, where single ops are timed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in name, package.module:function or file.py:function")
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="MACHINE",
        help='a name from `ferry machines`, file.yaml, or "this"; repeatable',
    )
    parser.add_argument("--batch", metavar="N", help="samples per step, such as 512 or 64k (default: the model's); of all GPUs")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="shape of an input, such as 8x3x512x512 or 8x128:int64; once per input",
    )
    parser.add_argument("--optimizer", metavar="NAME", help="sgd (with momentum), adam, adamw or rmsprop")
    parser.add_argument("--loss", metavar="NAME", help="cross_entropy, token_cross_entropy (classes last), mse or mean")
    parser.add_argument("--precision", default="fp32", metavar="NAME", help="fp32, tf32, fp16 or bf16 (default %(default)s)")
    parser.add_argument("--max", dest="largest", metavar="AXIS", help="also find the largest batch or resolution")
    parser.add_argument(
        "--policy",
        default="ferry",
        metavar="NAME",
        help="ferry, or swap-all: swap everything, as TFLMS did (default %(default)s)",
    )
    parser.add_argument(
        "--weights",
        action="store_true",
        help="where a step does not fit otherwise, weights, their gradients and the optimizer's state wait on the tier, too",
    )
    parser.add_argument(
        "--stream", action="store_true", help="where nothing fits, say what would do slab by slab, within rounding; on CPUs"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the machines, such as link_out=25GB/s; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with the timelines")
    _add_cluster_options(parser)
    parser.set_defaults(run=_run)


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a cluster")
    group.add_argument("--gpus", type=int, metavar="N", help="how many GPUs; this makes it an estimate of a cluster")
    group.add_argument("--per-node", type=int, metavar="N", help="GPUs of a node (default 8)")
    group.add_argument(
        "--network", metavar="NAME", help="links between nodes, such as ib-hdr or 8xib-edr (default: the vendor's)"
    )
    group.add_argument("--inside", metavar="NAME", help="links inside a node, such as nvlink3 (default: the vendor's)")
    group.add_argument(
        "--parallel",
        metavar="HOW",
        help="data, fsdp, tensor=K, pipeline=K, products such as tensor=8,data=64, or auto (default data)",
    )
    group.add_argument("--micro-batch", type=int, metavar="N", help="samples of a GPU at a time (default: the most that fit)")
    group.add_argument("--interleave", type=int, metavar="N", help="model chunks a pipeline stage holds (default 1)")
    group.add_argument("--recompute", action="store_true", help="recompute every layer's activations in backward")
    group.add_argument("--reduce", metavar="NAME", help="precision of gradients on the wire: fp32, fp16 or bf16 (default fp32)")
    group.add_argument("--samples", metavar="N", help="samples to train on in all, for the time and cost of the training")
    group.add_argument("--tokens", metavar="N", help="the same in tokens, for models of text")
    group.add_argument("--price", type=float, metavar="X", help="of one GPU for an hour")


_CLUSTER_OPTIONS = (
    "per_node",
    "network",
    "inside",
    "parallel",
    "micro_batch",
    "interleave",
    "reduce",
    "samples",
    "tokens",
    "price",
)


def _run(options: argparse.Namespace) -> int:
    from tensorferry import BadOption

    if options.gpus is None:
        given = [name for name in _CLUSTER_OPTIONS if getattr(options, name) is not None]
        if given or options.recompute:
            name = given[0] if given else "recompute"
            raise BadOption(f"--{name.replace('_', '-')} is for clusters; say how many GPUs with --gpus")
        if not options.on:
            raise BadOption("say which machine with --on; `ferry machines` lists them")
        return _estimate_machines(options)
    if len(options.on) != 1:
        how_many = "no machine was" if not options.on else f"{len(options.on)} machines were"
        raise BadOption(f"a cluster is of one kind of GPU, and {how_many} named; say which with --on, as in --on a100-80gb")
    single = {"--max": options.largest, "--policy swap-all": options.policy != "ferry"}
    for name, asked in (single | {"--weights": options.weights, "--stream": options.stream}).items():
        if asked:
            raise BadOption(f"{name} is for single machines; leave --gpus or {name.split()[0]} out")
    return _estimate_cluster(options)


def _estimate_cluster(options: argparse.Namespace) -> int:
    from tensorferry.estimation import estimate_cluster
    from tensorferry.estimation.split import parse_count

    with _rare_collections(), contextlib.redirect_stdout(sys.stderr):
        found = estimate_cluster(
            options.model,
            options.on[0],
            gpus=options.gpus,
            per_node=8 if options.per_node is None else options.per_node,
            parallel=options.parallel or "data",
            inside=options.inside,
            network=options.network,
            batch=parse_count(options.batch) if options.batch else None,
            micro_batch=options.micro_batch,
            interleave=1 if options.interleave is None else options.interleave,
            recompute=options.recompute,
            inputs=options.input,
            loss=options.loss,
            optimizer=options.optimizer,
            precision=options.precision,
            reduce=options.reduce or "fp32",
            samples=parse_count(options.samples, "--samples", 1000) if options.samples else None,
            tokens=parse_count(options.tokens, "--tokens", 1000) if options.tokens else None,
            price=options.price,
            changes=dict(_pair(text) for text in options.set),
        )
    if options.html is not None:
        found.save(options.html)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0


def _estimate_machines(options: argparse.Namespace) -> int:
    from tensorferry.estimation import estimate
    from tensorferry.estimation.split import parse_count

    with _rare_collections(), contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no part of the answer
        found = estimate(
            options.model,
            options.on,
            batch=parse_count(options.batch) if options.batch else None,
            inputs=options.input,
            loss=options.loss,
            optimizer=options.optimizer,
            precision=options.precision,
            largest=options.largest,
            policy=options.policy,
            changes=dict(_pair(text) for text in options.set),
            weights=options.weights,
            stream=options.stream,
        )
    if options.html is not None:
        found.save(options.html)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """While inside, Python looks for cycles less often: loading a framework makes many objects that stay."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _pair(text: str) -> tuple[str, str]:
    from tensorferry import BadMachine

    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise BadMachine(f"cannot read {text!r}; write --set key=value, as in --set link_out=25GB/s")
    return key.strip(), value.strip()
