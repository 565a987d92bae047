"""Imports modules, then forks a process for every request until the process that it lives with ends."""

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

_MAX_NBYTES = 2**20
_Request = tuple[dict[str, Any], list[int]]


def serve(address: str, lives_with: int, modules: list[str]) -> _Request:
    """Returns in every forked process, with what it shall do; the server itself ends here."""
    lifeline = os.pidfd_open(lives_with)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(16)
    if os.fork() != 0:
        os._exit(0)
    os.setsid()  # a Ctrl-C is not for this process
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that holds an object
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    clients: dict[int, socket.socket] = {}  # by the process that was forked for each
    while True:
        ready, _, _ = select.select([lifeline, listener, woken, *clients.values()], [], [])
        if lifeline in ready:
            break
        for pid, client in list(clients.items()):
            if client in ready:
                numbers = client.recv(1)
                os.kill(pid, numbers[0] if numbers else signal.SIGKILL)  # nobody is left to wait for it
                if not numbers:
                    clients.pop(pid).close()
        if listener in ready:
            client, _ = listener.accept()
            request = _receive(client)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                os.close(lifeline)
                for each in (listener, woken, wake, client, *clients.values()):
                    each.close()
                return request
            for number in request[1]:
                os.close(number)
            clients[pid] = client
        if woken in ready:
            woken.recv(64)
            _tell_ended(clients)
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    folder = Path(address).parent
    shutil.rmtree(folder)
    folder.with_name(f"{folder.name}.lock").unlink()
    os._exit(0)


def _receive(client: socket.socket) -> _Request:
    data, files, _, _ = socket.recv_fds(client, _MAX_NBYTES, 3)
    return json.loads(data), files


def _tell_ended(clients: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if client := clients.pop(pid, None):
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
            client.close()


def end(work: Callable[[], None]) -> NoReturn:
    """End as Python does after `work`, except that C++ destroys nothing: it would wait for threads that a fork does not have."""
    code: object = None
    try:
        work()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def run(request: dict[str, Any], files: list[int], loaded: dict[str, str]) -> None:
    """Be the process that was asked for; `loaded` are variables that were read when the modules were imported."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"] | loaded)
    arguments = request["arguments"]
    while arguments[0] == "-W":
        warnings._processoptions(arguments[1:2])  # what Python itself calls
        sys.warnoptions.append(arguments[1])
        arguments = arguments[2:]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if arguments[0] == "-m":
        sys.path.insert(0, request["folder"])
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        script = Path(arguments[0])
        sys.path.insert(0, str(script.resolve().parent))
        sys.argv = arguments
        main.__file__ = str(script)
        exec(compile(script.read_bytes(), str(script), "exec"), main.__dict__)


if __name__ == "__main__":
    address, lives_with, environment, *modules = sys.argv[1:]
    sys.executable = str(Path(address).with_name("python"))  # what these processes start is as warm
    sys.path.pop(0)  # this folder, which a process that is asked for does not look into
    asked = serve(address, int(lives_with), modules)
    end(lambda: run(*asked, json.loads(environment)))
