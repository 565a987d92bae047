"""Stands for one process of a warm Python: hands over its input, output and arguments, passes signals on, and ends as it ends.

Files that are handed to a process by their numbers, as multiprocessing does it, cannot be handed over: it becomes a usual Python.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main(address: str, arguments: list[str]) -> None:
    listed = [int(number) for number in os.listdir("/proc/self/fd")]
    if any(number > 2 and Path(f"/proc/self/fd/{number}").exists() for number in listed):
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    answer = connection.recv(16)
    if not answer:
        sys.exit(f"the warm Python has ended: {Path(address).with_name('errors.txt').read_text()}")
    code = int(answer)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
