"""The output of `skylane model tune-gate`."""

from collections.abc import Sequence

from modelling.reuse.search import Outcomes, pareto_front
from modelling.reuse.tune import TuneResult
from shared.reuse.tuning import Tuning
from shared.terminal_table import Table

_ROWS = 12  # Thresholds shown beside the chosen ones.


def thresholds_table(result: TuneResult) -> Table:
    """Returns the best thresholds that were tried, from few reference inferences to small losses; * marks the chosen."""
    measured = result.tuning.measured
    assert measured is not None
    table = Table(
        title=f"{result.tuning.reference.name} on {measured.frames} frames of {len(measured.drives)} drives",
        caption=f"loss: points of {measured.metric}; {measured.reference_accuracy:.2f} if every frame is sent · with 95 % "
        f"confidence the chosen thresholds lose at most {measured.loss_bound:.2f}",
    )
    for column in ("", f"{measured.method or 'no gate'} ≤", "c_low", "c_high", "sent", "reused", "local", "loss"):
        table.add_column(column, justify="right")
    for each in _shown(result):
        table.add_row(
            "*" if each is result.chosen else "",
            "" if each.gate is None else f"{each.gate.threshold:g}",
            *(("", "") if each.cascade is None else (f"{each.cascade.c_low:g}", f"{each.cascade.c_high:g}")),
            *(f"{share:.1%}" for share in (each.sent, each.reused, each.answered_locally)),
            f"{each.loss:.2f}",
        )
    return table


def reliability_table(tuning: Tuning) -> Table:
    """Returns the numbers of the reliability diagram, before and after temperature scaling."""
    measured, local = tuning.measured, tuning.local
    assert measured is not None
    assert local is not None
    before, after = measured.calibration_error_uncalibrated or 0.0, measured.calibration_error or 0.0
    table = Table(
        title=f"{local.name}: confidence and accuracy of {measured.reliability_unit} at temperature {local.temperature:g}",
        caption=f"expected calibration error {after:.4f}, without temperature {before:.4f}",
    )
    for column in ("confidence", "mean", "accuracy", measured.reliability_unit or ""):
        table.add_column(column, justify="right")
    for each in measured.reliability:
        if each.count:
            table.add_row(
                f"{each.low:.1f} to {each.high:.1f}", f"{each.confidence:.3f}", f"{each.accuracy:.3f}", str(each.count)
            )
    return table


def header(tuning: Tuning) -> str:
    """Returns the comment at the start of a tuning file."""
    measured = tuning.measured
    assert measured is not None
    return (
        f"Thresholds for {tuning.reference.name}, written by `skylane model tune-gate`.\n"
        f"Gate: mse in squared grey levels, pixels in percent. Losses: points of {measured.metric}."
    )


def _shown(result: TuneResult) -> Sequence[Outcomes]:
    """Returns the chosen thresholds and some of those that are not worse than others in every respect."""
    front = pareto_front(result.candidates)
    if result.chosen not in front:
        front = sorted([*front, result.chosen], key=lambda one: one.sent)
    at = next(index for index, each in enumerate(front) if each is result.chosen)
    first = max(0, min(at - _ROWS // 2, len(front) - _ROWS))
    return front[first : first + _ROWS]
