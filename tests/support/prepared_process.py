"""The program of a prepared process: imports the modules named on its command line, then forks on request.

Its first argument is the number of a socket, the last one reserves the space in which a fork shows its own command line.
"""

import ctypes
import gc
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 1 << 20
_STREAMS = 3
_ARGUMENTS = slice(45, 47)  # Fields of /proc/self/stat behind the name: where the command line is in memory.


def main(number: int, modules: list[str]) -> tuple[list[str], str] | None:
    """Serves requests; returns the command and the module to run in a fork, None at the end of the requests."""
    for name in modules:
        with suppress(ImportError):  # Of a library that is not installed; the fork says what it needs.
            import_module(name)
    gc.freeze()  # A fork's garbage collector then does not copy the memory of all these modules.
    requests = socket.socket(fileno=number)
    while True:
        request, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _STREAMS)
        if not request:
            return None
        adopted, announce = os.pipe()
        if (parent := os.fork()) == 0:
            if pid := os.fork():
                requests.send(str(pid).encode())
                os._exit(0)
            os.close(announce)
            requests.close()
            os.read(adopted, 1)  # Until its parent is the process that asked.
            os.close(adopted)
            return _become(json.loads(request), streams)
        os.waitpid(parent, 0)
        requests.send(b"adopted")
        for each in (adopted, announce, *streams):
            os.close(each)


def _become(request: dict[str, Any], streams: list[int]) -> tuple[list[str], str]:
    """Takes over folder, environment, standard streams and command line of a request."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["folder"])
    kept = {name: os.environ[name] for name in ("GLIBC_TUNABLES",) if name in os.environ}
    os.environ.clear()
    os.environ.update(kept | request["environment"])
    arguments: list[str] = request["arguments"]
    sys.orig_argv = [sys.executable, *arguments]
    _show(sys.orig_argv)
    start = arguments.index("-m")
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [*([] if "-P" in arguments[:start] else [request["folder"]]), *filter(None, folders)]
    return arguments[start + 1 :], arguments[start + 1]


def _show(command: list[str]) -> None:
    """Lets /proc show the command line of the fork."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS])
    text = b"".join(os.fsencode(word) + b"\0" for word in command)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    if (started := main(int(sys.argv[1]), sys.argv[2:-1])) is not None:
        sys.argv, module = started
        if "." in module:  # `runpy` warns of a module that is imported and run.
            sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
