"""The manifest of a run: source, model, configuration and machine, so that its results can be traced and repeated."""

from collections.abc import Mapping
from typing import Any

from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.presenting.presented_run import OutputRecorder
from edge.reuse.opening import Reuse
from shared import clock
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import SCHEMA
from shared.runtime.machine import commit, machine

_SECRETS = {"tls_key"}


def started(
    config: EdgeConfig, session: str, source: Mapping[str, Any], card: ModelCard, reuse: Reuse | None = None
) -> dict[str, Any]:
    """Returns the manifest at the start of a run."""
    return {
        "kind": "run",
        "schema": SCHEMA,
        "state": "running",
        "session": session,
        "vehicle": config.vehicle,
        "started_ns": clock.now_ns(),
        "source": dict(source),
        "model": {
            "name": card.name,
            "version": card.version,
            "sha256": card.sha256,
            "trained": card.trained,
            "task": card.task,
            "height": card.height,
            "width": card.width,
            "resize": card.resize,
            "labels": list(card.labels.names),
            "colours": [f"#{bytes(colour).hex()}" for colour in card.labels.colours],
        },
        "configuration": config.model_dump(mode="json", exclude=_SECRETS),
        "reuse": None if reuse is None else reuse.record(),
        **({"presenting": {"kind": config.present}} if config.present else {}),
        "seed": config.seed,
        "host": machine(),
        "commit": commit(),
    }


def ended(
    manifest: Mapping[str, Any],
    counts: RunCounts,
    rows_lost: int,
    reuse: Reuse | None = None,
    recorder: OutputRecorder | None = None,
) -> dict[str, Any]:
    """Returns the manifest at the end of a run; the outcomes sum to the frames read."""
    return {
        **manifest,
        "state": "complete" if not rows_lost else "incomplete",
        "ended_ns": clock.now_ns(),
        "frames_read": counts.read,
        "outcomes": {outcome.value: counts.outcomes.get(outcome, 0) for outcome in Outcome},
        "ignored_answers": dict(counts.ignored_answers),
        "retries": {"retried": counts.retried, "won": counts.retry_won},
        "answered_by": [
            {**origin._asdict(), "frames": frames} for origin, frames in sorted(counts.answered_by.items())
        ],
        "reuse": None if reuse is None else reuse.record(),
        **({"presenting": recorder.record()} if recorder else {}),
        "rows_lost": rows_lost,
    }
