"""The examples of docs/guides/clients.md, run unchanged with a worker."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.models.model import Model
from tests.clients.conftest import SampleImage, need
from tests.support.gateway import GatewayWorker, open_gateway

DOCUMENT = (Path(__file__).parents[2] / "docs" / "guides" / "clients.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]
EXAMPLES = {  # Language and code, by the heading above each.
    section.partition("\n")[0]: found.groups()
    for section in SECTIONS
    if (found := re.search(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
}


@pytest.fixture
def worker(model: Model) -> Iterator[GatewayWorker]:
    """A worker that serves the tiny model."""
    with open_gateway(model) as worker:
        yield worker


def test_every_example_is_short() -> None:
    """Readers copy them, and should see that nothing else is needed."""
    assert len(EXAMPLES) == 5
    for heading, (language, code) in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10, heading
        assert language in ("python", "sh")


@pytest.mark.parametrize("heading", [heading for heading, (language, _) in EXAMPLES.items() if language == "python"])
def test_an_example_returns_the_mask_of_the_direct_call(
    heading: str,
    worker: GatewayWorker,
    make_image: Callable[..., SampleImage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The examples use third-party clients."""
    image = make_image(101, 333)
    image.path.rename(tmp_path / "street.jpg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(_adapt(EXAMPLES[heading][1], worker), namespace)  # This process has loaded TensorFlow already.
    assert np.array_equal(namespace["mask"], image.mask)


def test_the_example_of_curl_runs(
    worker: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path
) -> None:
    """It uploads an image and receives JSON and an annotated image."""
    need("curl", "bash")
    make_image(101, 333).path.rename(tmp_path / "street.jpg")
    code = f"set -e\n{_adapt(EXAMPLES['curl'][1], worker)}"
    ran = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"model":"tiny"' in ran.stdout.replace(" ", "")
    assert (tmp_path / "annotated.jpg").read_bytes().startswith(b"\xff\xd8")


def _adapt(code: str, worker: GatewayWorker) -> str:
    """Replaces addresses and model name by those of the test."""
    for documented, actual in (
        ("localhost:8000", worker.http),
        ("localhost:8001", worker.grpc),
        ("road-small", "tiny"),
    ):
        code = code.replace(documented, actual)
    return code
