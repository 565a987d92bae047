"""The container of a pod as a process: its command, its environment and its probes, with folders in place of its volumes."""

import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from running import RunningServer

# options of the server that come last: everything else is what the kubelet would start
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--admin-port=0", "--host=127.0.0.1")


class StartedPod(RunningServer):
    """The only container of a pod, started here."""

    def __init__(self, pod: dict[str, Any], volumes: dict[str, Path], python: Path | None = None) -> None:
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        # what is there by itself: in the image, or put there by KServe
        mounts |= {path: folder for path, folder in volumes.items() if path.startswith("/")}
        self.container, self.pod = container, pod
        assert container["command"] == ["ferry"]
        arguments = [_replace(argument, mounts) for argument in container["args"]]
        environment = _image_variables(python) | {each["name"]: _replace(each["value"], mounts) for each in container["env"]}
        command = [sys.executable, "-m", "tensorferry.cli"] if python is None else [str(python.with_name("ferry"))]
        command += arguments
        self.open(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd="/"), has_admin=True)

    def ask(self, probe: str) -> int:
        """The status that a probe of the container gets."""
        asked = self.container[probe]["httpGet"]
        address = {"http": self.http, 8080: self.http, "admin": self.admin}[asked["port"]]
        return fetch(f"{asked.get('scheme', 'HTTP').lower()}://{address}{asked['path']}")[0]

    def wait_for_probe(self, probe: str) -> None:
        """Ask as often as the kubelet would before it gives up."""
        end = time.monotonic() + self.container[probe]["failureThreshold"] * self.container[probe]["periodSeconds"]
        while self.ask(probe) != 200:
            assert time.monotonic() < end
            time.sleep(0.05)


def _image_variables(python: Path | None) -> dict[str, str]:
    """What an image sets; nothing else of this process gets into a container but, without one, where its packages are."""
    if python is not None:
        return {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}


def _replace(text: str, mounts: dict[str, Path]) -> str:
    for path, folder in mounts.items():
        text = re.sub(rf"(^|=){re.escape(path)}(?=/|$)", lambda found, folder=folder: f"{found[1]}{folder}", text)
    return text


def fetch(url: str, key: str = "", body: bytes | None = None) -> tuple[int, bytes]:
    """A status and an answer, whoever signed the certificate: the kubelet does not look either."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    context = ssl._create_unverified_context() if url.startswith("https") else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
