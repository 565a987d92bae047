"""Who asks a registry: from the environment, or from the files that docker, podman and oras write when one logs in."""

import base64
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("tensorferry.serve")
_MAX_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password, or a token that stands for both."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def find_login(registry: str, environment: Mapping[str, str] = os.environ) -> Login | None:
    """The credentials for a registry; None where there are none, as for public images."""
    if environment.get("REGISTRY_USERNAME"):
        return Login(environment["REGISTRY_USERNAME"], environment.get("REGISTRY_PASSWORD", ""))
    names = [registry, f"https://{registry}", f"https://{registry}/v2/", f"https://{registry}/v1/"]
    if registry in ("docker.io", "index.docker.io"):
        names += ["docker.io", "index.docker.io", "https://index.docker.io/v1/"]
    for path in _list_files(environment):
        config = _read(path)
        entries = config.get("auths")
        for name in names:
            entry = entries.get(name) if isinstance(entries, dict) else None
            if isinstance(entry, dict) and (login := _read_entry(entry)) is not None:
                return login
        helpers = config.get("credHelpers")
        if config.get("credsStore") or (isinstance(helpers, dict) and registry in helpers):
            _LOG.warning("%s leaves the login of %s to another program, which is not run; set REGISTRY_USERNAME", path, registry)
    return None


def _list_files(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("REGISTRY_AUTH_FILE"):
        yield Path(environment["REGISTRY_AUTH_FILE"])
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"]) / "containers" / "auth.json"
    if environment.get("DOCKER_CONFIG"):
        yield Path(environment["DOCKER_CONFIG"]) / "config.json"
    elif environment.get("HOME"):
        yield Path(environment["HOME"]) / ".docker" / "config.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_NBYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _LOG.warning("the logins in %s cannot be read: %s", path, type(error).__name__)  # its text could show a part of them
        return {}
    return config if isinstance(config, dict) else {}


def _read_entry(entry: dict[str, Any]) -> Login | None:
    token, auth = entry.get("identitytoken"), entry.get("auth")
    if isinstance(token, str) and token:
        return Login(identity_token=token)
    if isinstance(auth, str) and auth:
        try:
            user, _, password = base64.b64decode(auth).decode().partition(":")
        except ValueError:
            return None
        return Login(user, password.rstrip("\0")) if user else None
    name, secret = entry.get("username"), entry.get("password")
    return Login(name, secret) if isinstance(name, str) and isinstance(secret, str) and name else None
