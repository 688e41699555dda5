from pathlib import Path

import pytest

from analysis.report.content import ReportContent
from analysis.report.data.report_input import load_report_input
from analysis.report.document import report_of
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a synthetic run; tests must not change it."""
    return write_run(tmp_path_factory.mktemp("runs") / "first", SyntheticRunPlan(frames=400, overlays=3))


@pytest.fixture(scope="session")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the same frames with a slower engine; tests must not change it."""
    plan = SyntheticRunPlan(frames=400, seed=1, session="50e551014ab1", slower_ms=40)
    return write_run(tmp_path_factory.mktemp("runs") / "slower", plan)


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a gate, a local model and a cascade; tests must not change it."""
    plan = SyntheticRunPlan(frames=400, reused=0.7, local=0.5)
    return write_run(tmp_path_factory.mktemp("runs") / "gated", plan)


@pytest.fixture(scope="session")
def report(run: Path) -> ReportContent:
    """The report of the run."""
    return report_of(load_report_input([run]))


@pytest.fixture(scope="session")
def gated_report(gated: Path) -> ReportContent:
    """The report of the run with a gate."""
    return report_of(load_report_input([gated]))


@pytest.fixture(scope="session")
def comparison(run: Path, slower: Path) -> ReportContent:
    """The report of both runs."""
    return report_of(load_report_input([run, slower]))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study; tests must not change it."""
    return write_study(tmp_path_factory.mktemp("studies") / "study")


@pytest.fixture(scope="session")
def study_report(study: Path) -> ReportContent:
    """The report of the study."""
    return report_of(load_report_input([study]))
