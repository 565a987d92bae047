"""Which route an address is of."""

import pytest

from tensorferry.serve.core.faults import NotFound
from tensorferry.serve.rest import routes
from tensorferry.serve.rest.routes import find_route


def test_long_addresses_are_not_remembered() -> None:
    before = routes._find_known_route.cache_info().currsize
    for at in range(4):
        with pytest.raises(NotFound):
            find_route("GET", f"/nothing/{at}")
        find_route("GET", f"/v2/models/{at}{'m' * 30_000}")
    assert routes._find_known_route.cache_info().currsize == before
