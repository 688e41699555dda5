"""`skylane send` to real workers."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cloud.gateway.settings import GatewaySettings
from edge.run_summary import NOTHING_ANSWERED
from edge.upload.cli import UnwritableError, send
from edge.upload.client import WorkerLostError
from edge.upload.grpc_client import UploadSettings
from edge.upload.http_client import HttpUploadClient
from shared.imaging.image_files import write_png
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, model


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for number in range(6):
        write_png(folder / f"{number}.png", np.full((2 * HEIGHT, 2 * WIDTH, 3), 0, np.uint8))
    whole = (folder / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[:40])
    (folder / "no.jpg").write_text("hello")
    return folder


def sent(folder: Path, lines: Path, *arguments: str) -> Result:
    """Run the command."""
    words = [str(folder), "--model", "tiny", "--json", str(lines), "--connect-timeout", "60", *arguments]
    return CliRunner().invoke(send, words)


def where(doors: Doors, transport: str) -> str:
    """A node, as the command is told of it."""
    return doors.grpc if transport == "grpc" else doors.http


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_whole_pictures_are_answered_and_corrupt_ones_told(transport: str, folder: Path, tmp_path: Path) -> None:
    """One that is damaged must not end a run of thousands, nor be overlooked."""
    lines, output = tmp_path / "lines.jsonl", tmp_path / "annotated"
    with open_gateway(model(), worker="one") as one, open_gateway(model(), worker="two") as two:
        nodes = f"{where(one, transport)},{where(two, transport)}"
        done = sent(folder, lines, "--nodes", nodes, "--transport", transport, "--output", str(output))
        assert done.exit_code == 1, done.output
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(Path(each["picture"]).name for each in told) == [f"{number}.png" for number in range(6)]
    assert all("error" not in each and each["total_ms"] > 0 and each["bytes_up"] > 0 for each in told)
    assert {each["node"] for each in told} <= {*nodes.split(",")}
    assert {each["task"] for each in told} == {"segmentation"}
    assert len(list(output.glob("*.jpg"))) == 6
    assert f"The annotated pictures are in {output}\n" in done.output
    assert "cut.png" in done.output
    assert "no.jpg" in done.output
    assert "2 corrupt" in done.output


@pytest.mark.parametrize(("lines", "output"), [("/dev/full", None), ("lines.jsonl", "/proc/nobody/here")])
def test_a_disk_that_takes_no_answer_ends_the_run_with_the_flag_to_mend(
    lines: str, output: str | None, folder: Path, tmp_path: Path
) -> None:
    """Not with a traceback, in the middle of a folder of thousands."""
    with open_gateway(model()) as doors:
        more = () if output is None else ("--output", output)
        done = sent(folder, tmp_path / lines, "--nodes", doors.grpc, *more)
    assert isinstance(done.exception, UnwritableError), done.exception
    flag = "--json" if output is None else "--output"
    assert f"{output or lines} cannot be written: " in str(done.exception)
    advice = f"make room or choose another {flag}" if output is None else f": choose another {flag}"
    assert str(done.exception).endswith(advice)  # Only on a full disk does it help to make room.


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_node_that_is_not_there_leaves_all_to_the_others(transport: str, folder: Path, tmp_path: Path) -> None:
    """And is named."""
    for name in ("cut.png", "no.jpg"):
        (folder / name).unlink()
    with open_gateway(model()) as doors:
        nodes = ("--nodes", "127.0.0.1:1", "--nodes", where(doors, transport))
        done = sent(folder, tmp_path / "lines.jsonl", *nodes, "--transport", transport)
    assert done.exit_code == 0, done.output
    assert "worker gets no more pictures node=send vehicle=send address=127.0.0.1:1 reason=" in done.output


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_node_that_does_not_come_is_waited_for_no_longer_than_there_is_work(
    transport: str, folder: Path, tmp_path: Path
) -> None:
    """A minute may be right for a node that starts, and not for a run of six pictures that others have answered."""
    with open_gateway(model()) as doors, ThreadPoolExecutor(1) as thread:
        nodes = ("--nodes", "127.0.0.1:1", "--nodes", where(doors, transport), "--connect-timeout", "3600")
        done = thread.submit(sent, folder, tmp_path / "lines.jsonl", *nodes, "--transport", transport).result(WAIT_S)
    assert "6 answered" in done.output
    assert "worker gets no more pictures node=send vehicle=send address=127.0.0.1:1 reason=" in done.output


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_node_that_comes_late_is_taken_in(transport: str, folder: Path, tmp_path: Path) -> None:
    """Workers take seconds to start; whoever is there already begins."""
    begun, come = threading.Event(), threading.Event()
    lines = tmp_path / "lines.jsonl"

    def wait() -> None:
        begun.set()
        assert come.wait(WAIT_S)

    with socket.create_server(("127.0.0.1", 0)) as holder:
        late = f"127.0.0.1:{holder.getsockname()[1]}"
    with open_gateway(model(wait), worker="early") as early, ThreadPoolExecutor(1) as thread:
        nodes = ("--nodes", f"{late},{where(early, transport)}", "--connect-timeout", "3600", "--places", "1")
        done = thread.submit(sent, folder, lines, *nodes, "--transport", transport)
        assert begun.wait(WAIT_S)
        gateway = GatewaySettings(grpc=late) if transport == "grpc" else GatewaySettings(http=late)
        with open_gateway(model(come.set), worker="late", gateway=gateway):
            assert "6 answered" in done.result(WAIT_S).output
    assert {json.loads(line)["node"] for line in lines.read_text().splitlines()} == {late, where(early, transport)}


def test_a_model_that_nobody_serves_fails_them_all(folder: Path, tmp_path: Path) -> None:
    """The reason is the node's."""
    with open_gateway(model()) as doors:
        done = sent(folder, tmp_path / "lines.jsonl", "--nodes", doors.http, "--transport", "http", "--model", "huge")
    assert done.exit_code == NOTHING_ANSWERED
    assert "huge" in done.output


@pytest.mark.parametrize(("status", "body"), [(200, b"hello"), (200, b"{}"), (404, b"no such page"), (502, b"")])
def test_a_server_that_is_no_worker_takes_no_pictures(status: int, body: bytes, folder: Path, tmp_path: Path) -> None:
    """Nonsense comes quickly: by load alone it would get nearly all of them, and fail them."""

    class Nonsense(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    lines = tmp_path / "lines.jsonl"
    with open_gateway(model()) as doors, ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        nodes = f"127.0.0.1:{server.server_port},{doors.http}"
        sent(folder, lines, "--nodes", nodes, "--transport", "http", "--places", "1")
        server.shutdown()
        serving.join()
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(told) == 6
    assert {each["node"] for each in told} == {doors.http}
    assert not any("error" in each for each in told)


def test_a_node_that_answers_drop_by_drop_is_given_up(folder: Path) -> None:
    """Each drop is in time, and the whole would never be."""
    over = threading.Event()

    class Drops(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "1000000")
            self.end_headers()
            with suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    settings = UploadSettings("tiny", answer_timeout_s=0.4, connect_timeout_s=WAIT_S)
    with ThreadingHTTPServer(("127.0.0.1", 0), Drops) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        with (
            closing(HttpUploadClient(f"127.0.0.1:{server.server_port}", settings)) as caller,
            pytest.raises(WorkerLostError),
        ):
            caller.ask(folder / "0.png")
        over.set()
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_token_is_sent_by_its_name(
    transport: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another name a worker would let nobody send who has not the token for all names."""
    token, tokens = "t" * 32, tmp_path / "tokens"
    tokens.write_text(f"car-1 {token}\n")
    monkeypatch.setenv("SKYLANE_WORKER_TOKEN", token)
    with open_gateway(model(), gateway=GatewaySettings("127.0.0.1:0", "127.0.0.1:0", tokens=tokens)) as doors:
        way = ("--nodes", where(doors, transport), "--transport", transport)
        own, others = sent(folder, tmp_path / "own", *way, "--vehicle", "car-1"), sent(folder, tmp_path / "send", *way)
    assert "6 answered" in own.output
    assert "it cannot speak as send" in " ".join(others.output.split())
