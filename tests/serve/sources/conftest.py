"""A real S3 server that the tests of sources share."""

from collections.abc import Iterator

import pytest
from object_server import ObjectServer


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    """An S3 server; a test that puts a fault into it takes it out again."""
    server = ObjectServer()
    yield server
    server.close()
