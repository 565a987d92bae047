"""The names that clients may call a server by."""

import pytest

from tensorferry.errors import BadOption
from tensorferry.serve.core.faults import Forbidden
from tensorferry.serve.core.hosts import AllowedHosts


def is_allowed(hosts: AllowedHosts, authority: str) -> bool:
    try:
        hosts.check(authority)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_a_server_of_this_machine_goes_by_loopback_names_alone(bound_to: str) -> None:
    hosts = AllowedHosts(None, bound_to)
    for good in ("localhost", "localhost:8000", "LOCALHOST.:8000", "127.0.0.1:1", "[::1]:8000", "::1", "app.localhost:8000", ""):
        assert is_allowed(hosts, good), good
    for bad in (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "10.0.0.7:8000",
        "127.0.0.1.evil.example",
        "[::2]:1",
    ):
        assert not is_allowed(hosts, bad), bad
        assert not is_allowed(hosts, bad), "a second try"


def test_a_server_for_other_machines_takes_any_name_unless_some_are_listed() -> None:
    assert is_allowed(AllowedHosts(None, "0.0.0.0"), "ml.svc.cluster.local:8000")
    hosts = AllowedHosts(["ML.example.com", "*.internal"], "0.0.0.0")
    # probes of Kubernetes ask by the pod's address, which no page can give itself
    for good in ("ml.example.com", "ml.example.com:443", "a.b.internal", "10.0.0.7:8000", "[fd00::7]:8000", "localhost:8000"):
        assert is_allowed(hosts, good), good
    for bad in ("example.com", "evil.ml.example.com", "internal", "xinternal", "10.0.0.7.evil.example"):
        assert not is_allowed(hosts, bad), bad


def test_a_star_turns_the_check_off() -> None:
    assert is_allowed(AllowedHosts(["*"], "127.0.0.1"), "any.example")


@pytest.mark.parametrize("name", ["http://ml.example.com", "a b", "*.*", "", "ml.example.com:80/", "-x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="--allowed-hosts"):
        AllowedHosts([name], "0.0.0.0")
