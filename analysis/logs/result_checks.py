"""Checks the frames that got a result without being sent: from an earlier frame, or from the vehicle's own model."""

from pathlib import Path

import numpy as np

from analysis.logs.log_rows import LogRows
from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.text_table import Bools, Ints
from shared.runlog.latency_log import WITH_RESULT, Outcome
from shared.stages import EDGE_STAGES

_OF_VEHICLE = (Outcome.REUSED, Outcome.ANSWERED_LOCALLY)
_OWN_RESULT = (Outcome.ANSWERED, Outcome.ANSWERED_LOCALLY)
_OWN_RESULT_ROW_LOST = tuple(f"row_lost: {outcome}" for outcome in _OWN_RESULT)  # Reasons that `repair` writes.
_NEEDED = {
    Outcome.REUSED: ("gate_distance", "reused_sequence", "t_gated_ns", "total_ms"),
    Outcome.ANSWERED_LOCALLY: ("t_inferred_locally_ns", "total_ms", "engine", "model_version"),
}
_MEASURED_IN = {"gate_distance": "t_gated_ns", "local_confidence": "t_inferred_locally_ns"}
_OF_SENT_FRAMES = ("t_sent_ns", "worker", "attempts", "batch_size", "bytes_up", "bytes_down")
_HIGHEST_CONFIDENCE = 1_000_000  # Decimals are read as millionths.


def results_of_vehicle(rows: LogRows) -> Bools:
    """Returns a mask of the frames for which the vehicle got a result, in time or late, without sending them."""
    return rows.table.empty("t_sent_ns") & rows.table.one_of("outcome", [*WITH_RESULT, Outcome.EXPIRED])


def last_stage_ns(rows: LogRows) -> Ints:
    """Returns the time of each frame's last stage at the vehicle, 0 if it has none."""
    stamps = [rows.numbers[f"t_{stage}_ns"] for stage in EDGE_STAGES]
    last_ns: Ints = np.max([np.where(stamp.known, stamp.data, 0) for stamp in stamps], axis=0)
    return last_ns


def check_results(rows: LogRows, path: Path) -> dict[str, tuple[Problem, ...]]:
    """Checks reused and local results; returns the problems of each check. `path` is the file named in the problems."""
    checks = _ResultChecks(rows, path)
    return {
        "reused and local results have their columns": checks.columns(),
        "reused results are those of earlier frames of the camera": checks.reused(),
    }


class _ResultChecks:
    """Checks the columns of a log."""

    def __init__(self, rows: LogRows, path: Path) -> None:
        self._rows = rows
        self._table = rows.table
        self._path = path

    def columns(self) -> tuple[Problem, ...]:
        """Checks that reused and local rows have their columns, and that other rows lack them."""
        problems = ProblemCollector(self._path)
        for outcome, names in _NEEDED.items():
            of_outcome = self._table.one_of("outcome", [outcome])
            for name in names:
                self._report(
                    problems, of_outcome & self._table.empty(name), name, f"is empty, but the frame is {outcome}"
                )
        if self._has_cascade():  # Without one, the local model need not have a confidence.
            unsure = self._table.one_of("outcome", [Outcome.ANSWERED_LOCALLY]) & self._table.empty("local_confidence")
            self._report(problems, unsure, "local_confidence", "is empty, but the cascade accepted the frame")
        of_vehicle = self._table.one_of("outcome", _OF_VEHICLE)
        for name in _OF_SENT_FRAMES:
            given = ~(self._table.empty(name) | self._table.one_of(name, ["0"]))
            self._report(problems, of_vehicle & given, name, "is given, but the frame was not sent")
        for name, stamp in _MEASURED_IN.items():
            unstamped = ~self._table.empty(name) & self._table.empty(stamp)
            self._report(problems, unstamped, name, f"is given, but {stamp} is empty")
        too_high = self._rows.numbers["local_confidence"].data > _HIGHEST_CONFIDENCE
        self._report(problems, too_high, "local_confidence", "is more than 1")
        misplaced = ~self._table.empty("reused_sequence") & ~self._may_be_reused()
        self._report(
            problems, misplaced, "reused_sequence", "is given, but the frame did not get the result of another"
        )
        return problems.collected()

    def reused(self) -> tuple[Problem, ...]:
        """Checks that a reused result belongs to an earlier frame of the camera and existed in time."""
        problems = ProblemCollector(self._path)
        sequences, named = self._rows.numbers["sequence"].data, self._rows.numbers["reused_sequence"]
        reused = named.known & self._may_be_reused()
        if self._rows.lost:  # The row of the other frame may be lost.
            reused &= np.isin(named.data, sequences)
        rows = np.flatnonzero(reused)
        wanted = named.data[rows]
        has_row = np.isin(wanted, sequences)
        order = np.argsort(sequences)
        source = order[np.minimum(np.searchsorted(sequences[order], wanted), len(order) - 1)]
        cameras, gated = self._table.series("camera").to_numpy(), self._rows.numbers["t_gated_ns"]
        result_ns = last_stage_ns(self._rows)[source]
        conditions = {
            "is not the number of an earlier frame": wanted >= sequences[rows],
            "is the number of a frame without a row": ~has_row,
            "is the number of a frame of another camera": cameras[source] != cameras[rows],
            "is the number of a frame without a result of its own": ~self._has_own_result()[source],
            "is the number of a frame whose result came later": gated.known[rows] & (result_ns > gated.data[rows]),
        }
        what = np.select(list(conditions.values()), list(conditions), default="")
        for text in conditions:
            self._report(problems, np.isin(np.arange(len(sequences)), rows[what == text]), "reused_sequence", text)
        return problems.collected()

    def _has_cascade(self) -> bool:
        configuration = self._rows.manifest.get("configuration")
        return isinstance(configuration, dict) and configuration.get("cascade") is True

    def _may_be_reused(self) -> Bools:
        """Returns a mask of the reused frames, in time or late."""
        return results_of_vehicle(self._rows) & self._table.one_of("outcome", [Outcome.REUSED, Outcome.EXPIRED])

    def _has_own_result(self) -> Bools:
        """Returns a mask of the frames whose result may be reused. The row of one may be lost, but not its outcome."""
        is_lost = self._table.one_of("reason", _OWN_RESULT_ROW_LOST)
        return self._table.one_of("outcome", _OWN_RESULT) | is_lost

    def _report(self, problems: ProblemCollector, where: Bools, column: str, what: str) -> None:
        problems.add_rows(f"cells of {column} that do not fit", self._table.lines[where], lambda _: what, column)
