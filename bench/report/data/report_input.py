"""What a report is about: one run, several, or a study; read once, whatever is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.logs.audit import audit
from bench.logs.problems import Problem
from bench.logs.run_log import RunLog, load_runs
from bench.report.data.study_log import StudyLog, is_study, load_study
from shared.errors import SkylaneError


class SubjectError(SkylaneError):
    """Folders that cannot be reported together."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Runs, or a study, and what is wrong with them."""

    runs: tuple[RunLog, ...] = ()
    study: StudyLog | None = None
    problems: tuple[Problem, ...] = ()
    local: RunLog | None = None  # A run on the vehicle itself, to weigh the others against.


def open_subject(folders: Sequence[Path], local: RunLog | None = None) -> Subject:
    """Read the folders of runs, or of one study.

    Raises:
        LogError: there is nothing to report.
        SubjectError: a study beside other folders.
    """
    studies = [folder for folder in folders if is_study(folder)]
    if studies and len(folders) > 1:
        raise SubjectError(f"{studies[0]} is a study and {len(folders)} folders were given: report a study alone")
    if studies and local:
        raise SubjectError(f"{studies[0]} is a study: --local weighs runs: give a vehicle's folder under cells instead")
    if studies:
        study = load_study(studies[0])
        return Subject(study=study, problems=study.missing)
    runs = load_runs(folders)
    problems = dict.fromkeys(problem for run in runs for problem in (*run.problems, *audit(run.folder)))
    return Subject(runs, problems=tuple(problems), local=local)
