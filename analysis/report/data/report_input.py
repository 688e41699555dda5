"""Reads the folders given to a report: one run, several runs, or a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.logs.audit import audit
from analysis.logs.problems import Problem
from analysis.logs.run_log import RunLog, load_runs
from analysis.report.data.study_log import StudyLog, is_study, load_study
from analysis.streaming.run_accuracy import RunAccuracy, run_accuracy
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
    streaming: tuple[RunAccuracy, ...] = ()  # Of each run, if the true labels were given.


def load_report_input(folders: Sequence[Path], local: RunLog | None = None, truths: Sequence[Path] = ()) -> ReportInput:
    """Reads the folders of runs, or of one study; `truths` are the bags with the true labels: one, or one for each run.

    Raises:
        LogError: A log or the study's table of runs cannot be read.
        ReportInputError: A study was given together with other folders, a local run or true labels, or the number of bags
            with true labels does not fit.
        EvaluationError: The outputs of a run cannot be compared with the labels.
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
    if studies and truths:
        raise ReportInputError(
            f"{studies[0]} is a study, but --truth compares runs with labels: set 'accuracy: true' in the file of the study, "
            "which then compares each run while it goes on"
        )
    if len(truths) not in (0, 1, len(folders)):
        raise ReportInputError(
            f"{len(truths)} bags with --truth for {len(folders)} runs: give one bag for all, or one for each run in their order"
        )
    if studies:
        study = load_study(studies[0])
        return ReportInput(study=study, problems=study.problems)
    runs = load_runs(folders)
    problems = dict.fromkeys(problem for run in runs for problem in (*run.problems, *audit(run.folder)))
    bags = truths if len(truths) == len(runs) else [*truths] * len(runs)
    streaming = tuple(run_accuracy(run, bag) for run, bag in zip(runs, bags, strict=True)) if truths else ()
    return ReportInput(runs, problems=tuple(problems), local=local, streaming=streaming)
