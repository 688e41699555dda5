"""The C# client, compiled with Mono, with a worker's REST endpoint."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.clients.conftest import SampleImage, make, need, read_pgm, run
from tests.support.gateway import GatewayWorker


@pytest.fixture(scope="session")
def program() -> Path:
    """The compiled client."""
    need("mcs", "mono", "make")
    folder, built = make("csharp")
    if "System.Web.Extensions" in built.stdout + built.stderr and built.returncode:
        pytest.skip("Mono has no JSON reader: apt-get install libmono-system-web-extensions4.0-cil")
    assert built.returncode == 0, built.stderr
    return folder / "skylane-send.exe"


@pytest.mark.parametrize("shape", [(64, 96, ".png"), (101, 333, ".jpg")])
def test_the_mask_is_that_of_the_direct_call(
    program: Path,
    gateway: GatewayWorker,
    make_image: Callable[..., SampleImage],
    tmp_path: Path,
    shape: tuple[int, int, str],
) -> None:
    """The client uses binary tensors: a mask in JSON would be ten times as large."""
    image = make_image(*shape)
    sent = run("mono", program, f"http://{gateway.http}", "tiny", image.path, tmp_path / "mask.pgm")
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), image.mask)
    assert sent.stdout.startswith("mask of 64 x 96 by tiny 1\n")
    assert re.search(r"^inferred \d+(\.\d+)? ms$", sent.stdout, re.MULTILINE), sent.stdout


def test_errors_are_one_line(
    program: Path, gateway: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path
) -> None:
    """They have the worker's message and the HTTP status."""
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    image = make_image(4, 4)
    for address, model, path, message in (
        (f"http://{gateway.http}", "tiny", text, r"skylane-send: 4\d\d \w+: .*JPEG"),
        (f"http://{gateway.http}", "absent", image.path, "skylane-send: 404 NotFound: .*absent"),
        ("http://127.0.0.1:1", "tiny", image.path, "skylane-send: .*(?i:connect)"),
        ("nowhere", "tiny", image.path, "skylane-send: "),
        (f"http://{gateway.http}", "tiny", tmp_path / "absent.jpg", "absent.jpg"),
    ):
        sent = run("mono", program, address, model, path, tmp_path / "mask.pgm")
        assert sent.returncode == 1
        assert re.search(message, sent.stderr), sent.stderr
        assert len(sent.stderr.splitlines()) == 1
    assert not (tmp_path / "mask.pgm").exists()
