"""`skylane send` with real workers."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edge.run import NOTHING_ANSWERED
from edge.upload.cli import UnwritableError, send
from edge.upload.client import NothingToUploadError
from shared.imaging.image_files import write_png
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, model


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for number in range(6):
        write_png(folder / f"{number}.png", np.full((2 * HEIGHT, 2 * WIDTH, 3), 0, np.uint8))
    whole = (folder / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[:40])
    (folder / "no.jpg").write_text("hello")
    return folder


def send_images(folder: Path, lines: Path, *arguments: str) -> Result:
    """Runs the command."""
    words = [str(folder), "--model", "tiny", "--json", str(lines), "--connect-timeout", "60", *arguments]
    return CliRunner().invoke(send, words)


def address_of(worker: GatewayWorker, transport: str) -> str:
    """Returns the address of a worker."""
    return worker.grpc if transport == "grpc" else worker.http


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_valid_images_are_answered_and_corrupt_ones_reported(transport: str, folder: Path, tmp_path: Path) -> None:
    """A corrupt file must neither end the run nor go unnoticed."""
    lines, output = tmp_path / "lines.jsonl", tmp_path / "annotated"
    with open_gateway(model(), worker="one") as one, open_gateway(model(), worker="two") as two:
        nodes = f"{address_of(one, transport)},{address_of(two, transport)}"
        done = send_images(folder, lines, "--nodes", nodes, "--transport", transport, "--output", str(output))
        assert done.exit_code == 1, done.output
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(Path(each["picture"]).name for each in results) == [f"{number}.png" for number in range(6)]
    assert all("error" not in each and each["total_ms"] > 0 and each["bytes_up"] > 0 for each in results)
    assert {each["node"] for each in results} <= {*nodes.split(",")}
    assert {each["task"] for each in results} == {"segmentation"}
    assert len(list(output.glob("*.jpg"))) == 6
    assert f"The annotated images are in {output}\n" in done.output
    assert "cut.png" in done.output
    assert "no.jpg" in done.output
    assert "2 corrupt" in done.output


def test_without_a_valid_image_no_worker_is_called(folder: Path, tmp_path: Path) -> None:
    """Warnings about workers would hide the reason."""
    for image in folder.glob("[0-5].png"):
        image.write_bytes(b"notanimage")
    done = send_images(folder, tmp_path / "lines.jsonl", "--nodes", "127.0.0.1:1")
    assert isinstance(done.exception, NothingToUploadError)
    assert str(done.exception).startswith(f"no image to send: {folder / '0.png'}: image starts with 6e 6f")
    assert str(done.exception).endswith(": send a JPEG or a PNG (and 7 more)")
    assert "not reached" not in done.output


def test_a_file_that_cannot_be_opened_is_refused_before_images_are_sent(folder: Path, tmp_path: Path) -> None:
    """Their results would be lost."""
    done = send_images(folder, tmp_path / "missing" / "lines.jsonl", "--nodes", "127.0.0.1:1")
    assert done.exit_code == 1
    assert "lines.jsonl': No such file or directory" in done.output
    assert "not reached" not in done.output


@pytest.mark.parametrize(("lines", "output"), [("/dev/full", None), ("lines.jsonl", "/proc/nobody/here")])
def test_a_write_error_ends_the_run_and_names_the_option(
    lines: str, output: str | None, folder: Path, tmp_path: Path
) -> None:
    """The user gets a message instead of a traceback."""
    with open_gateway(model()) as worker:
        more = () if output is None else ("--output", output)
        done = send_images(folder, tmp_path / lines, "--nodes", worker.grpc, *more)
    assert isinstance(done.exception, UnwritableError), done.exception
    flag = "--json" if output is None else "--output"
    assert f"{output or lines} cannot be written: " in str(done.exception)
    advice = f"make room or choose another {flag}" if output is None else f": choose another {flag}"
    assert str(done.exception).endswith(advice)  # Only a full disk needs room.


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_an_unreachable_worker_is_reported_and_others_do_its_work(transport: str, folder: Path, tmp_path: Path) -> None:
    """The warning names its address."""
    for name in ("cut.png", "no.jpg"):
        (folder / name).unlink()
    with open_gateway(model()) as worker:
        nodes = ("--nodes", "127.0.0.1:1", "--nodes", address_of(worker, transport))
        done = send_images(folder, tmp_path / "lines.jsonl", *nodes, "--transport", transport)
    assert done.exit_code == 0, done.output
    assert "worker gets no more images node=send vehicle=send address=127.0.0.1:1 reason=" in done.output


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_run_does_not_wait_for_a_missing_worker_without_work(transport: str, folder: Path, tmp_path: Path) -> None:
    """The connection timeout applies only while images wait."""
    with open_gateway(model()) as worker, ThreadPoolExecutor(1) as thread:
        nodes = ("--nodes", "127.0.0.1:1", "--nodes", address_of(worker, transport), "--connect-timeout", "3600")
        done = thread.submit(send_images, folder, tmp_path / "lines.jsonl", *nodes, "--transport", transport).result(
            WAIT_S
        )
    assert "6 answered" in done.output
    assert "worker gets no more images node=send vehicle=send address=127.0.0.1:1 reason=" in done.output


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_worker_that_starts_late_is_used(transport: str, folder: Path, tmp_path: Path) -> None:
    """Workers take seconds to start; the others begin at once."""
    started, late_used = threading.Event(), threading.Event()
    lines = tmp_path / "lines.jsonl"

    def wait() -> None:
        started.set()
        assert late_used.wait(WAIT_S)

    with socket.create_server(("127.0.0.1", 0)) as holder:
        late = f"127.0.0.1:{holder.getsockname()[1]}"
    with open_gateway(model(wait), worker="early") as early, ThreadPoolExecutor(1) as thread:
        nodes = ("--nodes", f"{late},{address_of(early, transport)}", "--connect-timeout", "3600", "--concurrency", "1")
        done = thread.submit(send_images, folder, lines, *nodes, "--transport", transport)
        assert started.wait(WAIT_S)
        with open_gateway(
            model(late_used.set),
            worker="late",
            http=late if transport == "http" else None,
            grpc=late if transport == "grpc" else None,
        ):
            assert "6 answered" in done.result(WAIT_S).output
    assert {json.loads(line)["node"] for line in lines.read_text().splitlines()} == {late, address_of(early, transport)}


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_an_unknown_model_fails_all_images(transport: str, folder: Path, tmp_path: Path) -> None:
    """The message names the model that was asked for."""
    with open_gateway(model()) as worker:
        target = ("--nodes", address_of(worker, transport), "--transport", transport, "--connect-timeout", "1")
        done = send_images(folder, tmp_path / "lines.jsonl", *target, "--model", "huge")
    assert done.exit_code == NOTHING_ANSWERED
    assert "no worker serves model 'huge'" in " ".join(done.output.split())


def test_a_server_that_is_no_worker_gets_no_images(folder: Path, tmp_path: Path) -> None:
    """Its errors are fast, so balancing by load alone would send it most of the images."""

    class NoWorker(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    lines = tmp_path / "lines.jsonl"
    with open_gateway(model()) as worker, ThreadingHTTPServer(("127.0.0.1", 0), NoWorker) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        nodes = f"127.0.0.1:{server.server_port},{worker.http}"
        send_images(folder, lines, "--nodes", nodes, "--transport", "http", "--concurrency", "1")
        server.shutdown()
        serving.join()
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [each["node"] for each in results if "error" not in each] == [worker.http] * 6


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_vehicle_name_must_match_the_token(
    transport: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker accepts a token only with the name that it was issued for."""
    token, tokens = "t" * 32, tmp_path / "tokens"
    tokens.write_text(f"car-1 {token}\n")
    monkeypatch.setenv("SKYLANE_WORKER_TOKEN", token)
    with open_gateway(model(), http="127.0.0.1:0", grpc="127.0.0.1:0", tokens=tokens) as worker:
        target = ("--nodes", address_of(worker, transport), "--transport", transport)
        own, others = (
            send_images(folder, tmp_path / "own", *target, "--vehicle", "car-1"),
            send_images(folder, tmp_path / "send", *target),
        )
    assert "6 answered" in own.output
    assert "does not allow the name send" in " ".join(others.output.split())
