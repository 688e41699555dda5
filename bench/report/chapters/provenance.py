"""What ran: the source, the model, the settings, the machine and the versions that every figure stands on."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bench.report.content import Caution, Part, Prose, Section, Table, texts
from bench.report.numerals import number
from bench.run_log import RunLog

_TITLE = "What ran"
_UNTRAINED = "The weights of this model are random: its masks mean nothing. Its times are those of the real network."


def chapter(run: RunLog) -> Section:
    """Provenance of one run."""
    if not run.manifest:
        return Section(
            "provenance",
            _TITLE,
            (Caution("The run has no manifest that can be read: what was played to whom is not known."),),
        )
    parts: list[Part] = []
    if _of(run.manifest, "model").get("trained") is False:
        parts.append(Caution(_UNTRAINED))
    rows = tuple(facts(run.manifest))
    parts.append(Table("provenance", "What the manifest of the run says.", texts("what", "value"), rows))
    return Section("provenance", _TITLE, tuple(parts))


def comparison(runs: Sequence[RunLog]) -> Section:
    """Provenance of several runs side by side: first what differs, then what they have in common."""
    told = [dict(facts(run.manifest)) for run in runs]
    names = list(dict.fromkeys(name for facts_of_run in told for name in facts_of_run))
    rows = [(name, *(facts_of_run.get(name) for facts_of_run in told)) for name in names]
    differing = tuple(row for row in rows if len(set(row[1:])) > 1)
    common = tuple(row[:2] for row in rows if len(set(row[1:])) == 1)
    parts: list[Part] = [
        Caution(f"{run.name} has no manifest that can be read: what it played to whom is not known.")
        for run in runs
        if not run.manifest
    ]
    parts += [
        Caution(f"{run.name}: {_UNTRAINED}") for run in runs if _of(run.manifest, "model").get("trained") is False
    ]
    if differing:
        columns = texts("what", *(run.name for run in runs))
        parts.append(Table("provenance_differing", "What differs between the runs.", columns, differing))
    if common:
        parts.append(Table("provenance_common", "What the runs have in common.", texts("what", "value"), common))
    return Section("provenance", _TITLE, tuple(parts or [Prose("Not known: no run has a manifest.")]))


def facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
    return ((name, _text(manifest[name])) for name in names if manifest.get(name) is not None)


def _times(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    began, ended = manifest.get("started_ns"), manifest.get("ended_ns")
    if isinstance(began, int):
        yield "started", _moment(began)
    if isinstance(began, int) and isinstance(ended, int):
        yield "ended", f"{_moment(ended)}, after {number((ended - began) / 1e9)} s"


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
        yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
