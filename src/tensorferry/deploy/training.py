"""A training in a cluster: a TrainJob with a runtime of its own, a JobSet, or a Job that needs no operator.

Every pod starts the same `ferry train`, which finds the others by torchrun's variables (PET_*), saves on SIGTERM, and resumes the
run in its folder when it is started again. The folder is on a claim that all pods share.
"""

import math
import os
import re
from dataclasses import replace
from typing import Any

import yaml

from tensorferry import __version__
from tensorferry.deploy.bucket_run import check_bucket
from tensorferry.deploy.chart import fill
from tensorferry.deploy.check.pods import read_quantity
from tensorferry.deploy.folder import check_target, write_folder
from tensorferry.deploy.image import USER
from tensorferry.deploy.names import check_name, is_label, split_image
from tensorferry.deploy.options import JobOptions
from tensorferry.errors import BadOption
from tensorferry.recipes.loading import make_recipe
from tensorferry.recipes.recipe import TorchRecipe
from tensorferry.scaling.parallel import Split
from tensorferry.scaling.world import Cluster
from tensorferry.text import printable
from tensorferry.train.config import BACKEND_VARIABLE
from tensorferry.train.start import TrainRequest
from tensorferry.train.trainer import KERAS_TEAM_BACKENDS
from tensorferry.train.worker import Order, check_order, grow_batch
from tensorferry.units import format_bytes, parse_bytes

KINDS = {
    "trainjob": ("runtime.yaml", "trainjob.yaml", "networkpolicy.yaml"),
    "jobset": ("jobset.yaml", "networkpolicy.yaml"),
    "job": ("service.yaml", "job.yaml", "networkpolicy.yaml"),
}
# what a TrainJob may change of a runtime's pods, and of a container in them
_POD_PATCHES = (
    *("terminationGracePeriodSeconds", "serviceAccountName", "securityContext", "tolerations", "volumes"),
    *("nodeSelector", "affinity", "imagePullSecrets"),
)
_CONTAINER_PATCHES = ("name", "env", "securityContext", "volumeMounts")
RUNS = "/runs"  # where pods see the claim
_PORT = 29500  # as the Trainer's
_MAX_RESTARTS = 6
_GIB = 2**30
_PROCESS_NBYTES = 4 * _GIB  # guessed
_OVERHEAD_NBYTES = _GIB  # of a process, for its framework and batches; and of a pod, for shared memory
_MAX_GRACE_SECONDS = 24 * 3600


def write_training(options: JobOptions) -> str:
    """Write the manifests, and return what was chosen for the user, if anything was; raises BadOption, BadRecipe and the like,
    with nothing written.
    """
    check_target(options.to)
    name = check_name(options.name or options.to.name, "a training")
    processes = options.gpus or options.workers
    options, note = _fit_batch(options, processes)
    image = options.image or f"localhost/{name}:{__version__}"
    _check(options, image, processes)
    claim, bucket = _read_place(options)
    memory, memory_note = _choose_memory(options, processes)
    train_args = list_arguments(options, name)
    shared = {
        "name": name,
        "title": printable(options.recipe),
        "image": image,
        "nodes": options.nodes,
        "processes": processes,
        "gpus": options.gpus,
        "cpus": options.cpus or str(processes),
        "memory": memory,
        "memory_note": memory_note,
        "claim": claim or f"{name}-runs",
        "bucket": bucket and f"{bucket}/{name}",
        "credentials": options.credentials,
        "service_account": options.service_account,
        "size": options.size,
        "queue": options.queue,
        "grace_seconds": options.grace_seconds,
        "restarts": _MAX_RESTARTS,
        "runs": RUNS,
        "user": USER,
        "port": _PORT,
        "train_args": train_args,
        "keras_backend": _find_backend(options),
        "runtime": options.runtime,
        "runtime_kind": "ClusterTrainingRuntime" if options.is_cluster_wide or options.runtime else "TrainingRuntime",
    }
    # an operator sets command and variables itself
    of_kind: dict[str, dict[str, object]] = {
        "trainjob": {"args": [], "master": "", "subdomain": ""},
        "jobset": {"args": train_args, "master": f"{name}-node-0-0.{name}", "subdomain": ""},
        "job": {"args": train_args, "master": f"{name}-0.{name}", "subdomain": name},
    }
    pod = fill("train/pod.yaml.j2", **shared, **of_kind[options.kind]).rstrip()
    parts = {
        "pod": pod,
        "patch": _make_patch(pod) if options.runtime else "",
        "failure_policy": fill("train/failure_policy.yaml.j2").rstrip(),
    }
    files = [*KINDS[options.kind], *(["claim.yaml"] if options.checkpoints is None else [])]
    if options.runtime:
        files.remove("runtime.yaml")
    write_folder(options.to, {file: fill(f"train/{file}.j2", **shared, **parts) for file in files})
    return note


def _find_backend(options: JobOptions) -> str:
    """What Keras runs on in the pods: what it was checked for here; empty where the recipe has no Keras."""
    recipe = make_recipe(options.recipe, dict(options.settings), options.start)
    return "" if isinstance(recipe, TorchRecipe) else os.environ.get(BACKEND_VARIABLE) or KERAS_TEAM_BACKENDS[0]


def _make_patch(pod: str) -> str:
    """What of a pod may be said beside a runtime that is there already."""
    described: dict[str, Any] = yaml.safe_load(pod)
    spec = described["spec"]
    patch = {key: spec[key] for key in _POD_PATCHES if key in spec}
    patch["containers"] = [{key: each[key] for key in _CONTAINER_PATCHES if key in each} for each in spec["containers"]]
    return yaml.safe_dump({"metadata": described["metadata"], "spec": patch}, sort_keys=False, width=120).rstrip()


def _fit_batch(options: JobOptions, processes: int) -> tuple[JobOptions, str]:
    """With the recipe's batch for every process, where it has fewer rows than there are processes and nobody set another."""
    parallel = options.parallel or Split.parallel
    settings, note = grow_batch(options.recipe, dict(options.settings), options.start, parallel, processes * options.nodes)
    return replace(options, settings=tuple(settings.items())), note


def list_arguments(options: JobOptions, name: str) -> list[str]:
    """What `ferry` is started with in every pod."""
    given = {
        "from": options.start,
        "data": options.data,
        "every": options.every,
        "seed": options.seed,
        "precision": options.precision,
        "budget": options.budget,
        "parallel": options.parallel,
    }
    return [
        "train",
        options.recipe,
        f"--out={RUNS}/{name}",
        "--auto-resume",
        *(f"--set={key}={value}" for key, value in options.settings),
        *(f"--{key}={value}" for key, value in given.items() if value is not None),
    ]


def _check(options: JobOptions, image: str, processes: int) -> None:
    if options.gpus and options.workers > 1:
        raise BadOption(f"each of {options.gpus} GPUs gets a process; leave out --workers {options.workers}")
    if not (parts := split_image(image))["tag"] and not parts["digest"]:
        raise BadOption(f"the image {image!r} has no tag, so what runs would change by itself; write it as {image}:1")
    if re.search(r"\.py(:|$)", options.recipe):
        raise BadOption(
            f"{options.recipe!r} is a file of this machine; put it into a package of the image, and say package.module:Recipe"
        )
    if options.runtime is not None:
        check_name(options.runtime, "a runtime")
        if "://" in (options.checkpoints or ""):
            raise BadOption("a runtime that is there gets no containers for a bucket; leave out --runtime, or say pvc:CLAIM")
    if options.data is not None and not options.data.startswith("/"):
        raise BadOption(f"--data {options.data!r} is read in the pod; write a whole path there, as {RUNS}/data/reviews.csv")
    if options.queue is not None and not is_label(options.queue):
        raise BadOption(f"{options.queue!r} is no name of a queue: small letters, digits and hyphens")
    if not 1 <= options.grace_seconds <= _MAX_GRACE_SECONDS:
        raise BadOption(f"--grace {options.grace_seconds}: expected 1 to {_MAX_GRACE_SECONDS} seconds")
    for flag, amount in (("--cpus", options.cpus), ("--memory", options.memory), ("--size", options.size)):
        if amount is not None and not read_quantity(amount):
            raise BadOption(f"{flag} {amount}: expected a quantity such as {'500m or 4' if flag == '--cpus' else '16Gi'}")
    request = TrainRequest(options.recipe, dict(options.settings), options.start)
    cluster = Cluster(processes, options.nodes, options.nodes, "" if options.nodes > 1 else None)
    if not cluster.is_alone:
        check_order(Order(request, split=Split(options.parallel or Split.parallel)), cluster)
    else:
        if options.parallel is not None:
            raise BadOption("--parallel is for several processes; say how many, as in --nodes 2 or --workers 2")
        make_recipe(request.recipe, request.settings, request.start)


def _read_place(options: JobOptions) -> tuple[str, str]:
    """The claim that is there already, or the address in a bucket; neither where a claim is to be written."""
    text = options.checkpoints or ""
    if "://" in text:
        if options.nodes > 1:
            raise BadOption(f"{options.nodes} nodes write one checkpoint together, in a folder that all see; give them pvc:CLAIM")
        return "", check_bucket(text)
    if options.credentials is not None:
        raise BadOption("--credentials are those of a bucket; say which, as in --checkpoints s3://bucket/runs")
    kind, _, rest = text.partition(":")
    if kind == "pvc" and rest and not rest.startswith("/"):
        return check_name(rest, "a claim"), ""
    if text:
        raise BadOption(f"checkpoints cannot go to {text!r}; write pvc:CLAIM or s3://bucket/runs, or have a claim written")
    return "", ""


def _choose_memory(options: JobOptions, processes: int) -> tuple[str, str]:
    """How much a pod may take, and where the figure comes from."""
    if options.memory is not None:
        return options.memory, "As it was asked for."
    if options.gpus or options.budget in (None, "auto"):
        nbytes = processes * _PROCESS_NBYTES + _OVERHEAD_NBYTES
        return _round(nbytes), f"NOT MEASURED: a guess of {format_bytes(_PROCESS_NBYTES)} for each process; --memory sets it."
    budget = parse_bytes(options.budget or "")
    nbytes = processes * (budget + _OVERHEAD_NBYTES) + _OVERHEAD_NBYTES
    return _round(nbytes), f"The budget of {format_bytes(budget)} and 1 GiB beside it for each process; 1 GiB of shared memory."


def _round(nbytes: int) -> str:
    return f"{math.ceil(nbytes / 2**28) * 256}Mi"
