"""The C++ client, clients/cpp: built, and run against a worker behind a real Mosquitto."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloud.models.model import Model
from shared.imaging.opencv import cv2
from shared.network.address import Address
from shared.stages import CLOUD_STAGES
from tests.clients.conftest import BUILD, CLIENTS, Picture, need, read_pgm, run
from tests.pipeline.rig import worker

pytestmark = pytest.mark.mosquitto


@pytest.fixture(scope="session")
def program() -> Path:
    """The client, compiled; without optimising, which takes longer than all it does."""
    need("g++", "make")
    if not (Path("/usr/include/mosquitto.h").exists() and Path("/usr/include/msgpack.hpp").exists()):
        pytest.skip("no libmosquitto or msgpack to compile against: apt-get install libmosquitto-dev libmsgpack-dev")
    built = run("make", "-C", CLIENTS / "cpp", f"BUILD={BUILD / 'cpp'}", "CXXFLAGS=-O0", timeout_s=300)
    assert built.returncode == 0, built.stderr
    return BUILD / "cpp" / "skylane-send"


@pytest.fixture
def send(program: Path, mosquitto_url: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the client; its mask is `mask.pgm`."""
    address = Address.parse(mosquitto_url)

    def call(picture: Path, *flags: str, model: str = "tiny") -> subprocess.CompletedProcess[str]:
        where = ("--broker", f"{address.host}:{address.port}", "--model", model)
        return run(program, *where, *flags, picture, tmp_path / "mask.pgm")

    return call


@pytest.mark.parametrize("codec", ["rle", "raw"])
@pytest.mark.parametrize("shape", [(64, 96, ".png"), (101, 333, ".jpg"), (301, 97, ".jpg"), (3, 2, ".png")])
def test_the_mask_is_the_direct_calls(
    send: Callable[..., subprocess.CompletedProcess[str]],
    picture: Callable[..., Picture],
    model: Model,
    mosquitto_url: str,
    tmp_path: Path,
    *,
    shape: tuple[int, int, str],
    codec: str,
) -> None:
    """The resize is planned in C++, made by the worker: one pixel off, and the worker refuses it or the mask differs."""
    shown = picture(*shape)
    with worker(mosquitto_url, model):
        sent = send(shown.path, "--mask-codec", codec)
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), shown.mask)
    lines = [line.split() for line in sent.stdout.splitlines()[1:]]
    took_ms = {stage: float(ms) for stage, ms, _ in lines}
    assert list(took_ms) == ["sent", *CLOUD_STAGES[1:], "cloud", "crossing", "total"]
    assert sum(took_ms[stage] for stage in CLOUD_STAGES[1:]) == pytest.approx(took_ms["cloud"], abs=0.01)
    assert took_ms["total"] > took_ms["cloud"] > 0 < took_ms["crossing"]


def test_refusals_are_told(
    send: Callable[..., subprocess.CompletedProcess[str]],
    picture: Callable[..., Picture],
    model: Model,
    mosquitto_url: str,
    tmp_path: Path,
) -> None:
    """Whoever sends a picture that is none must learn so from the worker, and what to do of everything else."""
    grey = tmp_path / "grey.png"
    cv2.imwrite(str(grey), np.zeros((64, 96), np.uint8))
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    with worker(mosquitto_url, model):
        colourless = send(grey)
        late = send(picture(1500, 2000).path, "--deadline-ms", "1")  # Its decoding alone takes longer.
    for ended, told in (
        (colourless, r"^skylane-send: rejected: png header declares 64×96, 1 × 8 bits"),
        (late, r"^skylane-send: expired: .*deadline.*$"),
        (send(text), "text.jpg is neither JPEG nor PNG"),
        (send(tmp_path / "absent.jpg"), "absent.jpg cannot be opened"),
        (send(picture(4, 4).path, "--timeout-s", "1", model="absent"), "no worker announces model absent"),
        (send(picture(4, 4).path, "--broker", "127.0.0.1:1"), "no broker at 127.0.0.1:1"),
    ):
        assert ended.returncode == 1
        assert re.search(told, ended.stderr, re.MULTILINE), ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    assert send(text, "--mask-codec", "png").returncode == 2
    assert not (tmp_path / "mask.pgm").exists()
