"""A run and another beside it, reported once."""

from pathlib import Path

import pytest

from bench.load.synthetic_run import Plan, write_run
from bench.report.content import Report
from bench.report.data.report_input import open_subject
from bench.report.document import report_of


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; read it only."""
    return write_run(tmp_path_factory.mktemp("runs") / "first", Plan(frames=400, overlays=3))


@pytest.fixture(scope="session")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same frames through a slower engine; read it only."""
    plan = Plan(frames=400, seed=1, session="50e551014ab1", slower_ms=40)
    return write_run(tmp_path_factory.mktemp("runs") / "slower", plan)


@pytest.fixture(scope="session")
def report(run: Path) -> Report:
    """The report of the run."""
    return report_of(open_subject([run]))
