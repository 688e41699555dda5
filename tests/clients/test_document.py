"""The examples of docs/guides/clients.md, run unchanged with a gateway."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import CLIENTS, SampleImage, need, read_pgm, run
from tests.support.gateway import GatewayWorker

SEND = CLIENTS / "python" / "send.py"
DOCUMENT = (Path(__file__).parents[2] / "docs" / "guides" / "clients.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]
EXAMPLES = {  # Language and code, by the heading above each.
    section.partition("\n")[0]: found.groups()
    for section in SECTIONS
    if (found := re.search(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
}


def test_every_example_is_short() -> None:
    """Readers copy them, and should see that nothing else is needed."""
    assert len(EXAMPLES) == 5
    for heading, (language, code) in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10, heading
        assert language in ("python", "sh")


@pytest.mark.parametrize("heading", [heading for heading, (language, _) in EXAMPLES.items() if language == "python"])
def test_an_example_returns_the_mask_of_the_direct_call(
    heading: str,
    gateway: GatewayWorker,
    make_image: Callable[..., SampleImage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The examples use third-party clients."""
    image = make_image(101, 333)
    image.path.rename(tmp_path / "street.jpg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(_adapt(EXAMPLES[heading][1], gateway), namespace)  # This process has loaded TensorFlow already.
    assert np.array_equal(namespace["mask"], image.mask)


def test_the_example_of_curl_runs(
    gateway: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path
) -> None:
    """It uploads an image and receives JSON and an annotated image."""
    need("curl", "bash")
    make_image(101, 333).path.rename(tmp_path / "street.jpg")
    code = f"set -e\n{_adapt(EXAMPLES['curl'][1], gateway)}"
    ran = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"model":"tiny"' in ran.stdout.replace(" ", "")
    assert (tmp_path / "annotated.jpg").read_bytes().startswith(b"\xff\xd8")


def test_the_python_client_writes_the_mask_or_an_error_in_one_line(
    gateway: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path
) -> None:
    """The example must work, and must stay short. The message of the worker is shown without a traceback."""
    image = make_image(101, 333)
    sent = run(sys.executable, SEND, gateway.grpc, "tiny", image.path, tmp_path / "mask.png")
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.png"), image.mask)
    assert len([line for line in SEND.read_text().splitlines()[1:] if line and "import" not in line]) <= 10
    sent = run(sys.executable, SEND, gateway.grpc, "absent", image.path, tmp_path / "mask.png")
    assert (sent.returncode, sent.stderr.startswith("[StatusCode.NOT_FOUND] ")) == (1, True)
    assert "Traceback" not in sent.stderr


def _adapt(code: str, gateway: GatewayWorker) -> str:
    """Replaces addresses and model name by those of the test."""
    for documented, actual in (
        ("localhost:8000", gateway.http),
        ("localhost:8001", gateway.grpc),
        ("road-small", "tiny"),
    ):
        code = code.replace(documented, actual)
    return code
