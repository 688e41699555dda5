"""Reads the folders given to a report: one run, several runs, or a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.logs.audit import audit
from bench.logs.problems import Problem
from bench.logs.run_log import RunLog, load_runs
from bench.report.data.study_log import StudyLog, is_study, load_study
from shared.errors import SkylaneError


class ReportInputError(SkylaneError):
    """The given folders cannot be reported together."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Runs or a study, with the problems of their files."""

    runs: tuple[RunLog, ...] = ()
    study: StudyLog | None = None
    problems: tuple[Problem, ...] = ()
    local: RunLog | None = None  # A run with a worker on the vehicle, to compare offloaded runs with.


def load_report_input(folders: Sequence[Path], local: RunLog | None = None) -> ReportInput:
    """Reads the folders of runs, or of one study.

    Raises:
        LogError: A log or the study's table of runs cannot be read.
        ReportInputError: A study was given together with other folders or with a local run.
    """
    studies = [folder for folder in folders if is_study(folder)]
    if studies and len(folders) > 1:
        raise ReportInputError(
            f"{studies[0]} is a study, but {len(folders)} folders were given: report each study separately"
        )
    if studies and local:
        raise ReportInputError(
            f"{studies[0]} is a study, but --local compares runs: give the folder of one vehicle's run instead, under {studies[0]}/cells"
        )
    if studies:
        study = load_study(studies[0])
        return ReportInput(study=study, problems=study.problems)
    runs = load_runs(folders)
    problems = dict.fromkeys(problem for run in runs for problem in (*run.problems, *audit(run.folder)))
    return ReportInput(runs, problems=tuple(problems), local=local)
