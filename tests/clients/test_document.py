"""docs/clients.md: its examples, run as they stand against a worker."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.models.model import Model
from tests.clients.conftest import Picture, need
from tests.support.gateway import Doors, open_gateway

DOCUMENT = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]
EXAMPLES = {  # Language and code, by the heading above each.
    section.partition("\n")[0]: found.groups()
    for section in SECTIONS
    if (found := re.search(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
}


@pytest.fixture
def doors(model: Model) -> Iterator[Doors]:
    """A worker of the tiny model, at any ports."""
    with open_gateway(model) as doors:
        yield doors


def test_no_example_is_long() -> None:
    """Who is to copy one must see that there is nothing behind it."""
    assert len(EXAMPLES) == 5
    for heading, (language, code) in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10, heading
        assert language in ("python", "sh")


@pytest.mark.parametrize("heading", [heading for heading, (language, _) in EXAMPLES.items() if language == "python"])
def test_an_example_brings_the_direct_calls_mask(
    heading: str, doors: Doors, picture: Callable[..., Picture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them, by the clients that others made."""
    shown = picture(101, 333)
    shown.path.rename(tmp_path / "street.jpg")
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(_here(EXAMPLES[heading][1], doors), made)  # In this process, which has TensorFlow loaded.
    assert np.array_equal(made["mask"], shown.mask)


def test_the_example_of_curl_runs(doors: Doors, picture: Callable[..., Picture], tmp_path: Path) -> None:
    """An upload in, words and a picture out."""
    need("curl", "bash")
    picture(101, 333).path.rename(tmp_path / "street.jpg")
    code = f"set -e\n{_here(EXAMPLES['curl'][1], doors)}"
    ran = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"model":"tiny"' in ran.stdout.replace(" ", "")
    assert (tmp_path / "annotated.jpg").read_bytes().startswith(b"\xff\xd8")


def _here(code: str, doors: Doors) -> str:
    """The example with this worker's ports and model."""
    for told, here in (("localhost:8000", doors.http), ("localhost:8001", doors.grpc), ("road-small", "tiny")):
        code = code.replace(told, here)
    return code
