import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.harness.environment import free_port
from bench.peers.clients.client import HttpClient, PeerError, check_ready
from bench.peers.rig.server import Server
from bench.peers.rig.workload import Job

# The HTTP form that the peers' servers have: bytes in, bytes and a header out. It answers the first byte of the picture.
_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    looks = 0
    def do_GET(self):
        Handler.looks += 1
        word = b"LOADING" if Handler.looks < 3 else b"READY"
        self.send_response(200)
        self.send_header("Content-Length", str(len(word)))
        self.end_headers()
        self.wfile.write(word)
    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/predict":
            self.send_error(404, "no such path")
            return
        mask = data[:1] * (4 * 6)
        self.send_response(200)
        self.send_header("Inference-Ns", "1500")
        self.send_header("Content-Length", str(len(mask)))
        self.end_headers()
        self.wfile.write(mask)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
PATIENCE_S = 60.0


def _server(folder: Path, *command: str) -> Server:
    return Server([sys.executable, "-c", *command], folder, {}, folder / "server.log")


def test_a_server_is_up_once_it_has_answered_and_gone_when_the_block_ends(tmp_path: Path, job: Job) -> None:
    """A port that listens is not yet a model that answers."""
    port = free_port()
    connect = partial(HttpClient, port, "/predict")
    with _server(tmp_path, _SERVER, str(port)) as server:
        server.await_answer(connect, job, PATIENCE_S)
        client = connect()
        answer = client.ask(job)
        client.close()
        pids = [process.pid for process in server.tree.members()]
    assert np.array_equal(answer.mask, np.full((4, 6), 9, np.uint8))
    assert answer.inference_ns == 1500
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_cold_server_is_ready_when_it_says_so_and_was_asked_nothing_else(tmp_path: Path) -> None:
    """An inference to find out would be the first one, which is what a cold start is about."""
    port = free_port()
    with _server(tmp_path, _SERVER, str(port)) as server:
        server.await_ready(port, "/health", "READY", PATIENCE_S)
        check_ready(port, "/health", "READY")
        with pytest.raises(PeerError, match="/health answers HTTP 200: READY"):
            check_ready(port, "/health", "GONE")


def test_what_a_server_refuses_is_told(tmp_path: Path, job: Job) -> None:
    """A wrong path would else be a mask of HTML."""
    port = free_port()
    with _server(tmp_path, _SERVER, str(port)) as server:
        server.await_answer(partial(HttpClient, port, "/predict"), job, PATIENCE_S)
        client = HttpClient(port, "/elsewhere")
        with pytest.raises(PeerError, match=r"(?s)HTTP 404: .*Error response"):
            client.ask(job)
        client.close()


def test_a_server_that_ends_is_quoted(tmp_path: Path, job: Job) -> None:
    """Its reason is in its log, of which the reader of the table knows nothing."""
    command = "print('loading'); raise SystemExit('no such model')"
    told = r"the server ended with 1: no such model \(all of it in .*server.log\)"
    with _server(tmp_path, command) as server, pytest.raises(PeerError, match=told):
        server.await_answer(partial(HttpClient, free_port(), "/predict"), job, PATIENCE_S)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, job: Job) -> None:
    """The others are waiting for their turns."""
    with (
        _server(tmp_path, "import signal; signal.pause()") as server,
        pytest.raises(PeerError, match=r"no answer within 0 s: no answer over HTTP: .*refused"),
    ):
        server.await_answer(partial(HttpClient, free_port(), "/predict"), job, 0.0)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    """An environment can be damaged after it was made."""
    with pytest.raises(PeerError, match="absent cannot be run: No such file"):
        Server([str(tmp_path / "absent")], tmp_path, {}, tmp_path / "server.log")
