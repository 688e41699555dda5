"""The files of a run and of a study may hold anything: a disk, an editor or a hand was at them."""

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.faults.hostile.mutations import STRANGE
from bench.load.synthetic_run import Plan, write_run
from bench.logs.audit import audit
from bench.logs.run_log import load_run
from bench.report.data.study_log import load_study
from shared.errors import SkylaneError
from shared.runlog.latency_log import read_rows
from shared.runlog.latency_table import summarise
from shared.runlog.repair import repair, repair_all
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
    return write_run(tmp_path_factory.mktemp("sound") / "run", Plan(frames=12, unanswered=0.3))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of a few runs."""
    return write_study(tmp_path_factory.mktemp("sound") / "study")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A file cut, flipped, spliced, or with another text in a cell or another value in its JSON."""
    if not content:
        return content
    match chance.randrange(6):
        case 0:
            return content[: chance.randrange(len(content))]
        case 1:
            flipped = bytearray(content)
            for _ in range(chance.randint(1, 20)):
                flipped[chance.randrange(len(flipped))] = chance.randrange(256)
            return bytes(flipped)
        case 2:
            lines = content.split(b"\n")
            lines[chance.randrange(len(lines))] = lines[chance.randrange(len(lines))]
            chance.shuffle(lines)
            return b"\n".join(lines)
        case 3 if content.startswith(b"{"):
            facts = json.loads(content)
            value = chance.choice([each for each in STRANGE if not isinstance(each, bytes)])
            facts[chance.choice(list(facts))] = value
            return json.dumps(facts).encode("utf-8", "surrogatepass")
    lines = content.split(b"\n")
    place = chance.randrange(len(lines))
    cells = lines[place].split(b",")
    cells[chance.randrange(len(cells))] = chance.choice(CELLS).encode()
    lines[place] = b",".join(cells)
    return b"\n".join(lines)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_runs_files_are_read_or_refused(tmp_path: Path, run: Path, seed: int) -> None:
    """A report of a thousand runs must not end at one of them with a traceback."""
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
def test_a_studys_files_are_read_or_refused(tmp_path: Path, study: Path, seed: int) -> None:
    """The same, for the tables and manifests above the runs."""
    folder = _copy(study, tmp_path, seed)
    with suppress(SkylaneError):
        load_study(folder)


def _copy(sound: Path, tmp_path: Path, seed: int) -> Path:
    """The folder with one of its files damaged."""
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    chance = random.Random(seed)
    path = chance.choice(sorted(each for each in folder.glob("*") if each.is_file() and each.suffix != ".png"))
    path.write_bytes(damaged(path.read_bytes(), chance))
    return folder
