"""Where models come from besides a folder: object stores, registries and hubs, read into a cache of this machine."""

import hashlib
import logging
import os
from pathlib import Path

from tensorferry.errors import BadOption
from tensorferry.messages import did_you_mean
from tensorferry.serve.sources import hub, object_store
from tensorferry.serve.sources.image import ImageSource
from tensorferry.serve.sources.mirror import Mirror
from tensorferry.serve.sources.source import ModelSource, SourceFailed, SourceUnreachable, check_url, is_url

__all__ = ["Mirror", "SourceFailed", "is_url", "open_mirror"]

_LOG = logging.getLogger("tensorferry.serve")
_IMAGE_SCHEME = "oci"


def open_mirror(url: str, cache: Path | None, max_nbytes: int) -> Mirror:
    """The local copy of the models at an address, checked to be readable; with nothing of it downloaded yet."""
    url = url.rstrip("/")
    folder = cache or _default_cache(url)
    source = _open_source(url, folder, max_nbytes)
    mirror = Mirror(source, folder, max_nbytes)
    try:
        if isinstance(source, ImageSource):
            source.check()  # to list it is to download it, which is left for the background
        else:
            mirror.check()
    except SourceUnreachable as fault:
        if not mirror.is_filled:
            mirror.close()
            raise
        _LOG.error("the models are those of an earlier run until the source answers: %s", fault)
    except BaseException:
        mirror.close()
        raise
    return mirror


def _open_source(url: str, cache: Path, max_nbytes: int) -> ModelSource:
    scheme = check_url(url)
    if scheme == _IMAGE_SCHEME:
        return ImageSource(url, cache / "layers", max_nbytes)
    if scheme in object_store.SCHEMES:
        return object_store.ObjectStore(url)
    if scheme == hub.SCHEME:
        return hub.HubSource(url)
    known = (*object_store.SCHEMES, hub.SCHEME, _IMAGE_SCHEME)
    raise BadOption(
        f"models cannot come from {scheme}://{did_you_mean(scheme, known)}; known are {', '.join(known)}, or a folder"
    )


def _default_cache(url: str) -> Path:
    """A folder of this source's own in the user's cache."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home, as in some containers
        raise BadOption("there is no home folder to keep models in; name one with --source-cache") from None
    return root / "tensorferry" / "sources" / hashlib.sha256(url.encode()).hexdigest()[:16]
