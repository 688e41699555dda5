"""A report from the folders of what is reported: one run, several, or a study."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bench.logs.run_log import RunLog, load_run
from bench.offloading.cost import throughput_hz
from bench.report.chapters.comparisons import cost, offloading
from bench.report.chapters.comparisons import runs as comparison
from bench.report.chapters.comparisons.cost import Tariff
from bench.report.chapters.run import (
    clocks,
    consistency,
    distribution,
    outcomes,
    provenance,
    resources,
    stage_statistics,
    stages,
    throughput,
    timeline,
)
from bench.report.chapters.study import bursts, cells, overhead, utilization
from bench.report.chapters.summary import verdict, verdict_of_several, verdict_of_study
from bench.report.content import Report, Section
from bench.report.data.answered_frames import answered, start_ns
from bench.report.data.frame_details import details, drawn, pictures
from bench.report.data.report_input import Subject, open_subject
from bench.report.data.study_log import StudyLog
from bench.report.output.page import render
from shared.errors import SkylaneError

_SAMPLES = 12  # Pictures of frames that are not among the slowest.


class ReportError(SkylaneError):
    """A report cannot be made or written."""


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    price_per_hour: float | None = None,
    currency: str = "EUR",
    footage_hz: float = 24.0,
    local: Path | None = None,
) -> Path:
    """Write the report of run folders, or of one study folder, as one HTML file; returns its path.

    `out`: [report.html in the folder; comparison.html in the first of several].

    Raises:
        LogError: there is nothing to report.
        ReportError: the file cannot be written.
    """
    tariff = Tariff(price_per_hour, currency, footage_hz) if price_per_hour is not None else None
    subject = open_subject(folders, load_run(local) if local else None)
    return write_page(report_of(subject, tariff), folders, out)


def write_page(report: Report, folders: Sequence[Path], out: Path | None) -> Path:
    """Write a report as HTML; see write_report."""
    path = out or folders[0] / ("report.html" if len(folders) == 1 else "comparison.html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8", errors="backslashreplace")  # JSON may hold half a character.
    except OSError as error:
        with suppress(OSError):
            if path.is_file():  # Half a page opens, and looks like all of it.
                path.unlink()
        raise ReportError(f"{path} cannot be written: {error.strerror}: choose another --out") from error
    return path


def report_of(subject: Subject, tariff: Tariff | None = None) -> Report:
    """What is to be reported of a subject."""
    if subject.study:
        return of_study(subject.study, tariff)
    return of_run(subject, tariff) if len(subject.runs) == 1 else of_runs(subject, tariff)


def of_run(subject: Subject, tariff: Tariff | None = None) -> Report:
    """The report of one run."""
    (run,) = subject.runs
    frames = run.frames
    known = answered(frames)
    began_ns = start_ns(frames)
    sections = [
        provenance.chapter(run),
        consistency.chapter(subject.problems, len(frames)),
        outcomes.chapter(run),
        stages.chapter(known),
        distribution.chapter(known, len(frames)),
        timeline.chapter(frames, known, began_ns),
        throughput.chapter(run, began_ns),
        clocks.chapter(known, began_ns),
        resources.chapter(run.resources),
        stage_statistics.chapter(stage_statistics.describe_stages(known), known, len(frames)),
    ]
    sections += _extras(subject, tariff)
    carried = drawn(frames)
    chosen = [*timeline.slowest(known)["sequence"], *known["sequence"].iloc[:: max(1, len(known) // _SAMPLES)]]
    kept = pictures(run.folder, frames, map(int, dict.fromkeys(chosen)))
    opened = details(carried, known, began_ns, kept)
    return Report(_title(run), verdict(frames, known), tuple(sections), opened)


def _title(run: RunLog) -> str:
    """The run by its name, its vehicle and its day, as far as they are known."""
    vehicle = run.manifest.get("vehicle")
    began_ns = start_ns(run.frames)
    parts = (
        f"Run {run.name}",
        f"vehicle {vehicle}" if isinstance(vehicle, str) else "",
        f"{datetime.fromtimestamp(began_ns / 1e9, UTC):%Y-%m-%d}" if began_ns else "",
    )
    return ", ".join(filter(None, parts))


def of_runs(subject: Subject, tariff: Tariff | None = None) -> Report:
    """The comparison of several runs: each against the first."""
    runs = subject.runs
    sides = [comparison.Side.of(run) for run in runs]
    sections = [
        provenance.comparison(runs),
        consistency.chapter(subject.problems, sum(len(run.frames) for run in runs)),
        outcomes.comparison(runs),
        comparison.chapter(sides),
        comparison.stages(sides),
        comparison.spreads(sides),
    ]
    sections += _extras(subject, tariff)
    title = f"Comparison of {len(runs)} runs"
    return Report(title, verdict_of_several([(side.name, side.frames) for side in sides]), tuple(sections))


def of_study(log: StudyLog, tariff: Tariff | None = None) -> Report:
    """The report of a study: its cells, and what each axis changes. `tariff`: the study's own where none is given."""
    sides = [log.side(cell) for cell in log.cells]
    sections = [cells.provenance(log), cells.runs(log), cells.results(log), cells.axes(log)]
    if len(log.capacity):
        sections.append(cells.capacity(log))
    sections += filter(
        None, (overhead.chapter(log), bursts.chapter(log), utilization.chapter(log), offloading.of_study(log))
    )
    if len(log.frames):
        sections += [comparison.stages(sides), comparison.spreads(sides)]
    if tariff := tariff or Tariff.of(log.manifest):
        measured = log.runs.reindex(columns=["cell", "throughput_hz"])
        rates = [(cell.name, measured.loc[measured["cell"] == cell.key, "throughput_hz"]) for cell in log.cells]
        sections.append(cost.chapter(rates, tariff))
    name = str(log.manifest.get("name") or log.folder.name)
    return Report(f"Study {name}", verdict_of_study(log), tuple(sections))


def _extras(subject: Subject, tariff: Tariff | None) -> list[Section]:
    """What is reported where it was asked for."""
    sections = []
    if tariff:
        sections.append(cost.chapter([(run.name, [throughput_hz(run)]) for run in subject.runs], tariff))
    if subject.local:
        sections.append(offloading.chapter(subject.local, subject.runs))
    return sections
