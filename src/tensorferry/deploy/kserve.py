"""A folder of models for KServe: a runtime that starts the server, and a service that gives it the models."""

import re

from tensorferry import __version__
from tensorferry.deploy.chart import fill
from tensorferry.deploy.folder import check_target, write_folder
from tensorferry.deploy.image import USER
from tensorferry.deploy.measure import measure_repository
from tensorferry.deploy.names import check_name, split_image
from tensorferry.deploy.options import KserveOptions
from tensorferry.deploy.repository import read_models
from tensorferry.deploy.sizing import choose_size
from tensorferry.errors import BadOption
from tensorferry.text import printable

_STORAGE = re.compile(r"(s3|gs|hdfs|webhdfs|pvc|oci|hf|https?|abfss?)://[^\s@/][^\s@]*")
_DRAIN_SECONDS = 30
_FILES = ("servingruntime.yaml", "inferenceservice.yaml")


def write_kserve(options: KserveOptions) -> None:
    """Write both manifests; raises BadOption or BadModel, with nothing written."""
    check_target(options.to)
    name = check_name(options.name or options.to.name, "a service")
    image, storage = options.image or f"localhost/{name}:{__version__}", options.storage or f"pvc://{name}"
    parts = split_image(image)
    if not (parts["tag"] or parts["digest"]):
        raise BadOption(f"the image {image!r} has no tag, so what runs would change by itself; write it as {image}:1")
    if not _STORAGE.fullmatch(storage):
        raise BadOption(f"KServe cannot get models from {storage!r}; write an address such as s3://bucket/models")
    models = read_models(options.repository)
    size = choose_size(models, measure_repository(options.repository, options.trust) if options.measures else None)
    values = {
        "name": name,
        "titles": [printable(each) for each in models.names],
        "image": image,
        "storage": storage,
        "replicas": options.replicas,
        "gpus": options.gpus,
        "trust": options.trust,
        "user": USER,
        "drain_seconds": _DRAIN_SECONDS,
        "cpu": size.cpu,
        "memory": size.memory,
        "max_memory": size.max_memory,
        "startup_seconds": size.startup_seconds,
        "measured": size.measured,
        "notes": size.notes,
    }
    write_folder(options.to, {file: fill(f"kserve/{file}.j2", **values) for file in _FILES})
