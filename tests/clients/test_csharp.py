"""The C# client, clients/csharp: compiled by Mono, and run against a worker's REST door."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud.models.model import Model
from tests.clients.conftest import BUILD, CLIENTS, Picture, need, read_pgm, run
from tests.support.gateway import Doors, open_gateway


@pytest.fixture(scope="session")
def program() -> Path:
    """The client, compiled."""
    need("mcs", "mono", "make")
    built = run("make", "-C", CLIENTS / "csharp", f"BUILD={BUILD / 'csharp'}", timeout_s=300)
    if "System.Web.Extensions" in built.stdout + built.stderr and built.returncode:
        pytest.skip("no JSON reader for Mono here: apt-get install libmono-system-web-extensions4.0-cil")
    assert built.returncode == 0, built.stderr
    return BUILD / "csharp" / "skylane-send.exe"


@pytest.fixture
def doors(model: Model) -> Iterator[Doors]:
    """A worker of the tiny model."""
    with open_gateway(model) as doors:
        yield doors


@pytest.mark.parametrize("shape", [(64, 96, ".png"), (101, 333, ".jpg")])
def test_the_mask_is_the_direct_calls(
    program: Path, doors: Doors, picture: Callable[..., Picture], tmp_path: Path, shape: tuple[int, int, str]
) -> None:
    """By the protocol's binary extension: a mask in JSON would be ten times as large."""
    shown = picture(*shape)
    sent = run("mono", program, f"http://{doors.http}", "tiny", shown.path, tmp_path / "mask.pgm")
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), shown.mask)
    assert sent.stdout.startswith("mask of 64 x 96 by tiny 1\n")
    assert re.search(r"^inferred \d+(\.\d+)? ms$", sent.stdout, re.MULTILINE), sent.stdout


def test_refusals_are_told(program: Path, doors: Doors, picture: Callable[..., Picture], tmp_path: Path) -> None:
    """In the worker's words, with the code that HTTP has for them."""
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    shown = picture(4, 4)
    for address, model, path, told in (
        (f"http://{doors.http}", "tiny", text, r"skylane-send: 4\d\d \w+: .*picture"),
        (f"http://{doors.http}", "absent", shown.path, "skylane-send: 404 NotFound: .*absent"),
        ("http://127.0.0.1:1", "tiny", shown.path, "skylane-send: .*(?i:connect)"),
        ("nowhere", "tiny", shown.path, "skylane-send: "),
        (f"http://{doors.http}", "tiny", tmp_path / "absent.jpg", "absent.jpg"),
    ):
        sent = run("mono", program, address, model, path, tmp_path / "mask.pgm")
        assert sent.returncode == 1
        assert re.search(told, sent.stderr), sent.stderr
        assert len(sent.stderr.splitlines()) == 1
    assert not (tmp_path / "mask.pgm").exists()
