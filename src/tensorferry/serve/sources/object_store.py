"""S3, Google Cloud Storage and Azure, through obstore: one package without others, which sends `If-Match` with every read."""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tensorferry.errors import BadOption
from tensorferry.extras import load_extra
from tensorferry.serve.sources.source import SourceChanged, SourceFailed, SourceFile, SourceUnreachable

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_ENDPOINT")
_STATUS = re.compile(r"status code: (\d{3})")
_CAUSE = re.compile(r"<Code>(\w+)</Code>")
_ASKED = re.compile(r"Error performing \w+ (https?://[^/\s]+)(\S*)")
_METADATA = ("/latest/", "/computeMetadata/", "/metadata/")  # where the clouds' machines tell their roles
_CONNECT_SECONDS = 5
_READ_SECONDS = 30  # without a byte
_REQUEST_SECONDS = 6 * 3600  # for the largest file
_MAX_RETRIES = 2
_PIECE_NBYTES = 2**20


class ObjectStore:
    """Objects below a prefix of a bucket. Credentials come from the environment, as each provider's own tools have it."""

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        self.url = url
        self.obstore = load_extra("obstore", url, "sources")
        is_plain = any(environment.get(name, "").startswith("http://") for name in _ENDPOINTS)
        try:
            self.store: Any = self.obstore.store.from_url(
                url,
                client_options={
                    "allow_http": is_plain,
                    "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
                    "read_timeout": timedelta(seconds=_READ_SECONDS),
                    "timeout": timedelta(seconds=_REQUEST_SECONDS),
                },
                retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": timedelta(seconds=_READ_SECONDS)},
            )
        except (self.obstore.exceptions.BaseError, ValueError) as error:
            raise BadOption(f"cannot use {url}: {_shorten(error)}") from None

    def list_files(self) -> Iterator[SourceFile]:
        """Every object below the prefix; marks of empty folders are none."""
        try:
            for page in self.store.list():
                for found in page:
                    if found["e_tag"] is None:
                        raise SourceFailed(f"{self.url} tells no etag of {found['path']!r}, so changes could not be seen")
                    yield SourceFile(found["path"], found["size"], found["e_tag"])
        except self.obstore.exceptions.BaseError as error:
            raise _explain(f"cannot list {self.url}", error) from None

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of an object, only while its etag is the listed one."""
        exceptions = self.obstore.exceptions
        try:
            answer = self.store.get(file.path, options={"if_match": file.etag})
            for piece in answer.stream(min_chunk_size=_PIECE_NBYTES):
                yield memoryview(piece)  # type: ignore[misc]  # bytes-like, and not copied
        except (exceptions.PreconditionError, exceptions.NotFoundError):
            raise SourceChanged(f"{file.path!r} changed while it was read from {self.url}") from None
        except exceptions.BaseError as error:
            raise _explain(f"cannot read {file.path!r} from {self.url}", error) from None

    def write(self, name: str, path: Path) -> None:
        """Make a file an object of this name; raises SourceFailed, or OSError where the file cannot be read."""
        try:
            with open(path, "rb") as file:
                self.store.put(name, file)
        except self.obstore.exceptions.BaseError as error:
            raise _explain(f"cannot write {name!r} to {self.url}", error) from None

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is none to remove."""
        try:
            self.store.delete(name)
        except self.obstore.exceptions.NotFoundError:
            pass
        except self.obstore.exceptions.BaseError as error:
            raise _explain(f"cannot remove {name!r} from {self.url}", error) from None


def _explain(what: str, error: Exception) -> SourceFailed:
    """What an error of the store means, without its pages of detail."""
    text = str(error)
    status, cause = _STATUS.search(text), _CAUSE.search(text)
    if status is None:
        asked = _ASKED.search(text)
        if asked is None:
            return SourceUnreachable(f"{what}: {_shorten(error)}")
        if asked[2].startswith(_METADATA):
            return SourceUnreachable(f"{what}: no credentials are in the environment, and the machine has no role to ask for")
        return SourceUnreachable(f"{what}: {asked[1]} does not answer")
    reason = cause[1] if cause else f"HTTP {status[1]}"
    if status[1].startswith("5"):
        return SourceUnreachable(f"{what}: the store answers {status[1]} ({reason})")
    if status[1] in ("401", "403"):
        return SourceFailed(f"{what}: access is denied ({reason}); check the credentials in the environment")
    if reason in ("NoSuchBucket", "ContainerNotFound"):
        return SourceFailed(f"{what}: there is no such bucket")
    return SourceFailed(f"{what}: the store answers {status[1]} ({reason})")


def _shorten(error: Exception) -> str:
    line = str(error).partition("\n")[0]
    return line[:300].removeprefix("Generic S3 error: ")
