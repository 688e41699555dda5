"""The C++ client, with a worker and a real Mosquitto."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.network.address import Address
from shared.stages import CLOUD_STAGES
from tests.clients.conftest import SampleImage, make, need, read_pgm, run
from tests.pipeline.rig import worker

pytestmark = pytest.mark.mosquitto


@pytest.fixture(scope="session")
def program() -> Path:
    """The compiled client; unoptimised, as optimising takes longer than running it."""
    need("g++", "make")
    if not (Path("/usr/include/mosquitto.h").exists() and Path("/usr/include/msgpack.hpp").exists()):
        pytest.skip("libmosquitto or msgpack is missing: apt-get install libmosquitto-dev libmsgpack-dev")
    folder, built = make("cpp", "CXXFLAGS=-O0")
    assert built.returncode == 0, built.stderr
    return folder / "skylane-send"


@pytest.fixture
def send(program: Path, mosquitto_url: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the client, which writes `mask.pgm`."""
    address = Address.parse(mosquitto_url)

    def call(image: Path, *flags: str, model: str = "tiny") -> subprocess.CompletedProcess[str]:
        options = ("--broker", f"{address.host}:{address.port}", "--model", model)
        return run(program, *options, *flags, image, tmp_path / "mask.pgm")

    return call


@pytest.mark.parametrize("codec", ["rle", "raw"])
@pytest.mark.parametrize("shape", [(64, 96, ".png"), (101, 333, ".jpg"), (301, 97, ".jpg"), (3, 2, ".png")])
def test_the_mask_is_that_of_the_direct_call(
    send: Callable[..., subprocess.CompletedProcess[str]],
    make_image: Callable[..., SampleImage],
    model: Model,
    mosquitto_url: str,
    tmp_path: Path,
    *,
    shape: tuple[int, int, str],
    codec: str,
) -> None:
    """The client plans the resize: if it were off by one pixel, the worker would reject it or the mask would differ."""
    image = make_image(*shape)
    with worker(mosquitto_url, model):
        sent = send(image.path, "--mask-codec", codec)
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), image.mask)
    lines = [line.split() for line in sent.stdout.splitlines()[1:]]
    duration_ms = {stage: float(ms) for stage, ms, _ in lines}
    assert list(duration_ms) == ["sent", *CLOUD_STAGES[1:], "cloud", "crossing", "total"]
    assert sum(duration_ms[stage] for stage in CLOUD_STAGES[1:]) == pytest.approx(duration_ms["cloud"], abs=0.01)
    assert duration_ms["total"] > duration_ms["cloud"] > 0 < duration_ms["crossing"]


def test_errors_are_one_line(
    send: Callable[..., subprocess.CompletedProcess[str]],
    make_image: Callable[..., SampleImage],
    model: Model,
    mosquitto_url: str,
    tmp_path: Path,
) -> None:
    """They come from the worker, the broker or the client itself, and say what to do."""
    grey = tmp_path / "grey.png"
    cv2.imwrite(str(grey), np.zeros((64, 96), np.uint8))
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    with worker(mosquitto_url, model):
        rejected = send(grey)
        late = send(make_image(1500, 2000).path, "--deadline-ms", "1")  # Its decoding alone takes longer.
    for ended, message in (
        (rejected, r"^skylane-send: rejected: rgb8 of 64×96×3: png header declares 64×96, 1 × 8 bits"),
        (late, r"^skylane-send: expired: .*deadline.*$"),
        (send(text), "text.jpg is neither JPEG nor PNG"),
        (send(tmp_path / "absent.jpg"), "absent.jpg cannot be opened"),
        (send(make_image(4, 4).path, "--timeout-s", "1", model="absent"), "no worker announces model absent"),
        (send(make_image(4, 4).path, "--broker", "127.0.0.1:1"), "no broker at 127.0.0.1:1"),
    ):
        assert ended.returncode == 1
        assert re.search(message, ended.stderr, re.MULTILINE), ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    assert send(text, "--mask-codec", "png").returncode == 2
    assert not (tmp_path / "mask.pgm").exists()
