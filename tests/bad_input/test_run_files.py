import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.logs.audit import audit
from analysis.logs.run_log import load_run
from analysis.report.data.report_input import load_study
from shared.errors import SkylaneError
from shared.runlog.latency_log import read_rows
from shared.runlog.latency_table import summarise
from shared.runlog.repair import repair, repair_all
from tests.support.faults.hostile.mutations import STRANGE
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study

CELLS = (
    "",
    "0",
    "-1",
    "1e9",
    "nan",
    "inf",
    "x",
    '"',
    ",",
    "é",
    "9" * 30,
    "x" * 300,
    "2026-01-01",
    "answered",
    "\x00",
    "\r",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few frames."""
    return write_run(tmp_path_factory.mktemp("intact") / "run", SyntheticRunPlan(frames=12, unanswered=0.3))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a few runs."""
    return write_study(tmp_path_factory.mktemp("intact") / "study")


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Truncates a file, changes bytes, moves lines, or replaces a CSV cell or a JSON value."""
    if not content:
        return content
    match rng.randrange(6):
        case 0:
            return content[: rng.randrange(len(content))]
        case 1:
            flipped = bytearray(content)
            for _ in range(rng.randint(1, 20)):
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
            return bytes(flipped)
        case 2:
            lines = content.split(b"\n")
            lines[rng.randrange(len(lines))] = lines[rng.randrange(len(lines))]
            rng.shuffle(lines)
            return b"\n".join(lines)
        case 3 if content.startswith(b"{"):
            values = json.loads(content)
            value = rng.choice([each for each in STRANGE if not isinstance(each, bytes)])
            values[rng.choice(list(values))] = value
            return json.dumps(values).encode("utf-8", "surrogatepass")
    lines = content.split(b"\n")
    row = rng.randrange(len(lines))
    cells = lines[row].split(b",")
    cells[rng.randrange(len(cells))] = rng.choice(CELLS).encode()
    lines[row] = b",".join(cells)
    return b"\n".join(lines)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_damaged_run_raises_only_skylane_error(tmp_path: Path, run: Path, seed: int) -> None:
    """A report over a thousand runs must not end with a traceback."""
    folder = _copy(run, tmp_path, seed)
    uses: tuple[Callable[[Path], object], ...] = (
        lambda path: summarise(read_rows(path)),
        load_run,
        audit,
        lambda path: repair_all(path.parent),
        repair,
        load_run,
    )
    for use in uses:
        try:
            use(folder)
        except SkylaneError as error:
            assert "\n" not in str(error)  # noqa: PT017  Most damage raises nothing.


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_damaged_study_raises_only_skylane_error(tmp_path: Path, study: Path, seed: int) -> None:
    """Covers the tables and manifests of a study."""
    folder = _copy(study, tmp_path, seed)
    with suppress(SkylaneError):
        load_study(folder)


def _copy(intact: Path, tmp_path: Path, seed: int) -> Path:
    """Copies a folder and damages one of its files."""
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(intact, folder)
    rng = random.Random(seed)
    path = rng.choice(sorted(each for each in folder.glob("*") if each.is_file() and each.suffix != ".png"))
    path.write_bytes(damaged(path.read_bytes(), rng))
    return folder
