"""The section of the manifest and the lines of the summary about frames that were not sent."""

from collections.abc import Iterator
from typing import Any

from edge.ledger import RunCounts
from edge.reuse.local_answers import LocalAnswers
from edge.reuse.opening import Reuse
from shared.runlog.latency_log import Outcome

_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


def reuse_record(reuse: Reuse | None) -> dict[str, Any] | None:
    """Returns the section of the manifest: the settings in use, and what was counted so far; None without reuse."""
    if reuse is None:
        return None
    record = dict(reuse.settings)
    if reuse.gate is not None:
        record["gate"] = {**record["gate"], "resets": reuse.gate.resets}
    if reuse.local is not None:
        model = reuse.local.model
        record["local"] = {**record["local"], **model.counts()}
    return record


def reuse_lines(reuse: Reuse | None, counts: RunCounts, *, is_open_loop: bool) -> Iterator[str]:
    """Yields how many frames were not sent and why, and warnings, for the summary."""
    if reuse is None:
        return
    if reuse.gate is not None:
        gate = reuse.settings["gate"]
        yield (
            f"{counts.outcomes.get(Outcome.REUSED, 0)} frames got the result of an earlier frame ({gate['method']} up to "
            f"{gate['threshold']:g})"
        )
        if reuse.gate.resets:
            yield (
                f"WARNING: changes of a camera's frame size or encoding: {reuse.gate.resets}; no result from before one "
                "was reused after it"
            )
    if reuse.local is not None:
        yield from _local_lines(reuse.local, counts, is_open_loop=is_open_loop)


def _local_lines(local: LocalAnswers, counts: RunCounts, *, is_open_loop: bool) -> Iterator[str]:
    model, card = local.model, local.model.model.card
    took = f", {model.median_ms:.1f} ms at the median" if model.median_ms is not None else ""
    yield (
        f"{counts.outcomes.get(Outcome.ANSWERED_LOCALLY, 0)} frames answered by the vehicle ({card.name} {card.version}, "
        f"{local.engine}, {card.sha256[:_SHOWN_DIGITS]}{took})"
    )
    if model.failures:
        failures = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(model.failures.items()))
        yield f"WARNING: local model {card.name} failed ({failures}): those frames went to the workers"
    if model.pauses:
        yield f"WARNING: local model {card.name} was paused {model.pauses} times, the last time because {model.pause_reason}"
    period_ms = local.pace.period_ms
    if is_open_loop and model.median_ms is not None and period_ms is not None and model.median_ms > period_ms:
        yield (
            f"WARNING: local model {card.name} took {model.median_ms:.1f} ms for a frame, but a frame was due every "
            f"{period_ms:.1f} ms: newer frames replaced those that waited (dropped, window); choose a smaller model or a "
            "lower rate"
        )
