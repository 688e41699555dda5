"""What ran: the source, the model, the settings, the machine and the versions that every figure stands on."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeGuard

import pandas as pd

from bench.logs.run_log import RunLog
from bench.report.content import Caution, Chapter, ChapterPart, CollapsedTable, Paragraph, ReportTable, text_columns
from bench.report.output.number_format import number
from shared.runlog.latency_log import Outcome

_TITLE = "What ran"
_UNKNOWN = "not known"
_PLAYED = (
    "codec", "quality", "closed_loop", "window", "burst", "arrivals", "arrival_rate_hz", "rate", "queue", "deadline_ms",
    "resize_at", "mask_codec", "qos",
)  # fmt: skip
_VERSIONS = ("skylane", "python", "tensorflow", "numpy", "opencv-python-headless", "paho-mqtt")
_SEVERAL = "Several versions of the model answered: what follows is of all of them together."
_SEVERAL_FILES = (
    "Several different models answered by the same name and version: what follows is of all of them together."
)
_UNTRAINED = (
    "The weights of this model are random: what it says means nothing. Its times are those of the real network."
)


def chapter(run: RunLog) -> Chapter:
    """Provenance of one run."""
    if not run.manifest:
        return Chapter(
            "provenance",
            _TITLE,
            (Caution("The run has no manifest that can be read: what was played to whom is not known."),),
        )
    parts: list[ChapterPart] = []
    if _of(run.manifest, "model").get("trained") is False:
        parts.append(Caution(_UNTRAINED))
    answerers = _answerers(run)
    if len({*answerers["model_version"]}) > 1:
        parts.append(Caution(_SEVERAL))
    elif len(_hashes(run.manifest)) > 1:
        parts.append(Caution(_SEVERAL_FILES))
    columns = text_columns("what", "value")
    parts.append(ReportTable("provenance", "The run in short.", columns, tuple(_in_short(run, answerers))))
    everything = ReportTable(
        "manifest", "What the manifest of the run says.", columns, tuple(manifest_rows(run.manifest))
    )
    parts.append(CollapsedTable("Everything the manifest says", everything))
    return Chapter("provenance", _TITLE, tuple(parts))


def comparison(runs: Sequence[RunLog]) -> Chapter:
    """Provenance of several runs side by side: first what differs, then what they have in common."""
    told = [dict(manifest_rows(run.manifest)) for run in runs]
    names = list(dict.fromkeys(name for facts_of_run in told for name in facts_of_run))
    rows = [(name, *(facts_of_run.get(name) for facts_of_run in told)) for name in names]
    differing = tuple(row for row in rows if len(set(row[1:])) > 1)
    common = tuple(row[:2] for row in rows if len(set(row[1:])) == 1)
    parts: list[ChapterPart] = [
        Caution(f"{run.name} has no manifest that can be read: what it played to whom is not known.")
        for run in runs
        if not run.manifest
    ]
    parts += [
        Caution(f"{run.name}: {_UNTRAINED}") for run in runs if _of(run.manifest, "model").get("trained") is False
    ]
    if differing:
        columns = text_columns("what", *(run.name for run in runs))
        parts.append(ReportTable("provenance_differing", "What differs between the runs.", columns, differing))
    if common:
        in_common = ReportTable(
            "provenance_common", "What the runs have in common.", text_columns("what", "value"), common
        )
        parts.append(CollapsedTable("What the runs have in common", in_common))
    return Chapter("provenance", _TITLE, tuple(parts or [Paragraph("Not known: no run has a manifest.")]))


def _answerers(run: RunLog) -> pd.DataFrame:
    """Who answered with what, and how many frames each; a row each."""
    answered = run.frames[(run.frames["outcome"] == Outcome.ANSWERED).to_numpy()]
    return answered.groupby(["worker", "model_version", "engine"], sort=True).size().reset_index(name="frames")


def _hashes(manifest: Mapping[str, Any]) -> set[str]:
    """Of the models that answered, as far as the manifest tells."""
    told = manifest.get("answered_by")
    return {str(by.get("sha256")) for by in told if isinstance(by, Mapping)} if isinstance(told, list) else set()


def _in_short(run: RunLog, answerers: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """What a reader asks first; what the manifest does not tell is said to be not known."""
    manifest = run.manifest
    source, model, host, played = (_of(manifest, key) for key in ("source", "model", "host", "configuration"))
    yield "source", _told(source, ("kind", "path"), "sha256")
    is_trained = model.get("trained")
    trained = "trained or not is not known" if is_trained is None else "trained" if is_trained else "random weights"
    yield "model", f"{_told(model, ('name', 'version'), 'sha256')}, {trained}"
    yield (
        "answered by",
        "; ".join(
            f"{by.worker} (version {by.model_version or _UNKNOWN}, {by.engine or 'engine ' + _UNKNOWN}): {by.frames} frames"
            for by in answerers.itertuples()
        )
        or "nobody",
    )
    yield "played", ", ".join(f"{name} {plain_text(played[name])}" for name in _PLAYED if played.get(name)) or _UNKNOWN
    yield "machine", ", ".join(plain_text(host[name]) for name in ("processor", "system") if host.get(name)) or _UNKNOWN
    yield "cores", plain_text(host.get("cores") or _UNKNOWN)
    yield "versions", ", ".join(f"{name} {host[name]}" for name in _VERSIONS if host.get(name)) or _UNKNOWN
    if (seed := manifest.get("seed", played.get("seed"))) is not None:
        yield "seed", plain_text(seed)
    for name in ("commit", "vehicle", "session", "state"):
        yield name, plain_text(manifest.get(name) or _UNKNOWN)
    yield from _times(manifest)


def _told(thing: Mapping[str, Any], names: Sequence[str], digest: str) -> str:
    words = " ".join(plain_text(thing[name]) for name in names if thing.get(name)) or _UNKNOWN
    return f"{words}, {digest} {thing.get(digest) or _UNKNOWN}"


def manifest_rows(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Everything a manifest tells, as names and texts, in the order in which a reader asks."""
    source, model, host = (_of(manifest, key) for key in ("source", "model", "host"))
    yield from _named(manifest, ("state", "vehicle", "session", "commit", "seed"))
    yield from _times(manifest)
    yield from _flat("source", source)
    yield from _flat("model", model)
    for name, value in _of(manifest, "configuration").items():
        yield from _flat(f"set: {name}", value)
    yield from _flat("machine", host)
    told = {
        "state",
        "vehicle",
        "session",
        "commit",
        "seed",
        "started_ns",
        "ended_ns",
        "source",
        "model",
        "host",
        "configuration",
        "outcomes",
    }
    for name, value in manifest.items():
        if name not in told:
            yield from _flat(name, value)


def _named(manifest: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((name, plain_text(manifest[name])) for name in names if manifest.get(name) is not None)


def _times(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    began, ended = manifest.get("started_ns"), manifest.get("ended_ns")
    if _is_time(began):
        yield "started", _moment(began)
    if _is_time(began) and _is_time(ended):
        yield "ended", f"{_moment(ended)}, after {number((ended - began) / 1e9)} s"


def _is_time(at_ns: Any) -> TypeGuard[int]:
    """Nanoseconds that 64 bits can hold: JSON has no bound."""
    return isinstance(at_ns, int) and abs(at_ns) < 1 << 63


def _moment(at_ns: int) -> str:
    try:
        return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return str(at_ns)


def _of(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value, and what it holds, by dotted names; what is empty is left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}: {key}" if ": " not in name else f"{name}.{key}", inner)
    elif value not in (None, "", [], ()):
        yield name, plain_text(value)


def plain_text(value: Any) -> str:
    """A value of a manifest in words, however deep: never as Python writes it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain_text(inner)}" for name, inner in value.items() if inner is not None)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(each, Mapping) for each in value) else ", ").join(map(plain_text, value))
    return str(value)
