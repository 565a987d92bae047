"""Stands for one process of a warm Python: hands over its input, output and arguments, passes signals on, and ends as it ends."""

import json
import os
import signal
import socket
import sys


def main(address: str, arguments: list[str]) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109, pathlib is slow
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    code = int(connection.recv(16) or "1")
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main(sys.argv[1], sys.argv[2:])
