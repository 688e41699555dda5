import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.peers.clients import HttpClient, Job, PeerError, ask_once, check_ready
from bench.peers.rig import Server
from shared.network.endpoint import free_port

# A server with the HTTP interface of the peers. Its mask repeats the first byte of the image.
_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    checks = 0
    def do_GET(self):
        Handler.checks += 1
        state = b"LOADING" if Handler.checks < 3 else b"READY"
        self.send_response(503 if state == b"LOADING" else 200)
        self.send_header("Content-Length", str(len(state)))
        self.end_headers()
        self.wfile.write(state)
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
TIMEOUT_S = 60.0


def _server(folder: Path, *command: str) -> Server:
    return Server([sys.executable, "-c", *command], folder, {}, folder / "server.log")


def test_a_server_is_ready_after_its_first_answer_and_ended_after_the_block(tmp_path: Path, job: Job) -> None:
    """A server may listen on its port before its model can answer."""
    port = free_port()
    connect = partial(HttpClient, port, "/predict")
    with _server(tmp_path, _SERVER, str(port)) as server:
        server.wait(partial(ask_once, connect, job), TIMEOUT_S)
        client = connect()
        answer = client.ask(job)
        client.close()
        pids = [process.pid for process in server.tree.members()]
    assert np.array_equal(answer.mask, np.full((4, 6), 9, np.uint8))
    assert answer.inference_ns == 1500
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_the_readiness_of_a_cold_server_is_checked_without_an_inference(tmp_path: Path) -> None:
    """A cold start measures the first inference, so the check must not make one."""
    port = free_port()
    with _server(tmp_path, _SERVER, str(port)) as server:
        with pytest.raises(PeerError, match=r"/health answers HTTP 503: LOADING|no answer over HTTP"):
            check_ready(port, "/health")
        server.wait(partial(check_ready, port, "/health"), TIMEOUT_S)
        check_ready(port, "/health")


def test_the_error_of_a_server_is_reported(tmp_path: Path, job: Job) -> None:
    """Otherwise the HTML error page for a wrong path would be read as a mask."""
    port = free_port()
    with _server(tmp_path, _SERVER, str(port)) as server:
        server.wait(partial(ask_once, partial(HttpClient, port, "/predict"), job), TIMEOUT_S)
        client = HttpClient(port, "/elsewhere")
        with pytest.raises(PeerError, match=r"(?s)HTTP 404: .*Error response"):
            client.ask(job)
        client.close()


def test_the_last_line_of_a_server_that_ended_is_quoted(tmp_path: Path, job: Job) -> None:
    """The reason is in the server's log, which the reader of the table may not know."""
    command = "print('loading'); raise SystemExit('no such model')"
    message = r"the server ended with 1: no such model \(all of it in .*server.log\)"
    with _server(tmp_path, command) as server, pytest.raises(PeerError, match=message):
        server.wait(partial(ask_once, partial(HttpClient, free_port(), "/predict"), job), TIMEOUT_S)


def test_waiting_for_a_server_ends_after_the_timeout(tmp_path: Path, job: Job) -> None:
    """The other servers must still be measured."""
    with (
        _server(tmp_path, "import signal; signal.pause()") as server,
        pytest.raises(PeerError, match=r"no answer within 0 s: no answer over HTTP: .*refused"),
    ):
        server.wait(partial(ask_once, partial(HttpClient, free_port(), "/predict"), job), 0.0)


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    """An environment can be damaged after its installation."""
    with pytest.raises(PeerError, match="absent cannot be run: No such file"):
        Server([str(tmp_path / "absent")], tmp_path, {}, tmp_path / "server.log")
