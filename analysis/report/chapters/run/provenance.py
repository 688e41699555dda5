"""The setup of a run (source, model, settings, machine, versions) and the consistency of its log."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeGuard

import pandas as pd

from analysis.logs.problems import Problem
from analysis.logs.run_log import RunLog
from analysis.report.content import Caution, Chapter, ChapterPart, Paragraph, ReportTable
from analysis.report.output.number_format import number
from shared.runlog.latency_log import Outcome

_TITLE = "Setup"
_UNKNOWN = "not known"
_SEVERAL_VERSIONS = "Several versions of the model answered: the statistics below combine all of them."
_SEVERAL_FILES = "Different models with the same name and version answered: the statistics below combine all of them."
_UNTRAINED = "The weights of this model are random: its results are meaningless, but its times are realistic."


def chapter(run: RunLog) -> Chapter:
    """Returns the setup of one run."""
    if not run.manifest:
        caution = Caution("The run has no readable manifest: source, model and settings are unknown.")
        return Chapter("provenance", _TITLE, (caution,), is_collapsed=True)
    parts: list[ChapterPart] = []
    if (state := plain_text(run.manifest.get("state") or _UNKNOWN)) != "complete":
        parts.append(Caution(f"The state of this run is not complete but {state}: frames can be missing at its end."))
    if _section(run.manifest, "model").get("trained") is False:
        parts.append(Caution(_UNTRAINED))
    workers = _workers(run)
    hashes = _model_hashes(run.manifest)
    if len({*workers["model_version"]}) > 1 and not (len(hashes) == 1 and all(hashes)):
        parts.append(Caution(_SEVERAL_VERSIONS))
    elif len(hashes) > 1:
        parts.append(Caution(_SEVERAL_FILES))
    rows = [("answered by", _answered_by(workers)), *manifest_rows(run.manifest)]
    parts.append(ReportTable("manifest", "The run's manifest, and the workers that answered.", ("what", "value"), rows))
    return Chapter("provenance", _TITLE, tuple(parts), is_collapsed=True)


def consistency(problems: Sequence[Problem], rows: int) -> Chapter:
    """Returns the problems of one or several logs with `rows` rows in total."""
    title = "Log consistency"
    if not problems:
        passed = Paragraph(f"All {rows:,} rows could be read, and every check passed.")
        return Chapter("consistency", title, (passed,), is_collapsed=True)
    found = "1 problem was" if len(problems) == 1 else f"{len(problems)} problems were"
    caution = Caution(f"{found} found. Unreadable values are not included in this report and never estimated.")
    listed = [(str(problem.file), problem.row, problem.column or "", problem.what) for problem in problems]
    headings = ("file", "row", "column", "problem")
    table = ReportTable("problems", "Problems of the log, with their positions in the files.", headings, listed)
    return Chapter("consistency", title, (caution, table), is_collapsed=True)


def comparison(runs: Sequence[RunLog]) -> Chapter:
    """Compares the setup of several runs: first the differences, then the common values."""
    manifests = [dict(manifest_rows(run.manifest)) for run in runs]
    names = list(dict.fromkeys(name for manifest in manifests for name in manifest))
    rows = [(name, *(manifest.get(name) for manifest in manifests)) for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    common = [row[:2] for row in rows if len(set(row[1:])) == 1]
    parts: list[ChapterPart] = [
        Caution(f"{run.name} has no readable manifest: its source, model and settings are unknown.")
        for run in runs
        if not run.manifest
    ]
    parts += [
        Caution(f"{run.name}: {_UNTRAINED}") for run in runs if _section(run.manifest, "model").get("trained") is False
    ]
    if differing:
        headings = ("what", *(run.name for run in runs))
        parts.append(ReportTable("provenance_differing", "Differences between the runs.", headings, differing))
    if common:
        caption = "Common values of all runs"
        parts.append(ReportTable("provenance_common", caption, ("what", "value"), common, is_collapsed=True))
    parts = parts or [Paragraph("Not known: no run has a manifest.")]
    return Chapter("provenance", _TITLE, tuple(parts), is_collapsed=True)


def _workers(run: RunLog) -> pd.DataFrame:
    """Returns the number of answered frames of each worker, model version and engine."""
    answered = run.frames[(run.frames["outcome"] == Outcome.ANSWERED).to_numpy()]
    return answered.groupby(["worker", "model_version", "engine"], sort=True).size().reset_index(name="frames")


def _model_hashes(manifest: Mapping[str, Any]) -> set[str]:
    """Returns the hashes of the models that answered; empty texts for those without one."""
    models = manifest.get("answered_by")
    models = models if isinstance(models, list) else []
    return {str(model.get("sha256") or "") for model in models if isinstance(model, Mapping)}


def _answered_by(workers: pd.DataFrame) -> str:
    listed = (
        f"{worker.worker} (version {worker.model_version or _UNKNOWN}, {worker.engine or 'engine ' + _UNKNOWN}): "
        f"{worker.frames} frames"
        for worker in workers.itertuples()
    )
    return "; ".join(listed) or "no worker"


def manifest_rows(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields names and values of everything in a manifest, except the outcomes, with the most important first."""
    general = ("state", "vehicle", "session", "commit", "seed")
    for name in general:
        if manifest.get(name) is not None:
            yield name, plain_text(manifest[name])
    yield from _times(manifest)
    yield from _flattened("source", _section(manifest, "source"))
    yield from _flattened("model", _section(manifest, "model"))
    for name, value in _section(manifest, "configuration").items():
        yield from _flattened(f"set: {name}", value)
    yield from _flattened("machine", _section(manifest, "host"))
    reuse = _section(manifest, "reuse")  # Another chapter shows the measurements of the tuning.
    yield from _flattened("reuse", {name: value for name, value in reuse.items() if name != "measured"})
    shown = {*general, "started_ns", "ended_ns", "source", "model", "configuration", "host", "outcomes", "reuse"}
    for name, value in manifest.items():
        if name not in shown:
            yield from _flattened(name, value)


def _times(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    started, ended = manifest.get("started_ns"), manifest.get("ended_ns")
    if _is_time(started):
        yield "started", _date_text(started)
    if _is_time(started) and _is_time(ended):
        yield "ended", f"{_date_text(ended)}, after {number((ended - started) / 1e9)} s"


def _is_time(value: Any) -> TypeGuard[int]:
    """Returns whether a value is a 64-bit integer; JSON also allows larger ones."""
    return isinstance(value, int) and abs(value) < 1 << 63


def _date_text(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return str(time_ns)


def _section(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}


def _flattened(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields a value, or the values of a nested map with dotted names; empty values are omitted."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flattened(f"{name}: {key}" if ": " not in name else f"{name}.{key}", inner)
    elif value not in (None, "", [], ()):
        yield name, plain_text(value)


def plain_text(value: Any) -> str:
    """Formats a value of a manifest, at any depth, without Python syntax."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain_text(inner)}" for name, inner in value.items() if inner is not None)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(each, Mapping) for each in value) else ", ").join(map(plain_text, value))
    return str(value)
