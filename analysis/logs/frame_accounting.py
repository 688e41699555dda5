"""Counts what became of the frames of several runs, and checks that every frame has one row and at most one result."""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.logs.audit import audit
from shared.runlog.latency_log import WITH_RESULT, Outcome, read_rows
from shared.runlog.run_manifest import read_manifest

_STOPPED = f"{Outcome.DROPPED}(stopped)"
_NS_PER_MS = 1e6

MaskCheck = Callable[
    [Path], tuple[int, int]
]  # Run folder to the number of masks checked and of those with wrong labels.


@dataclass(slots=True)
class FrameAccounts:
    """The frame counts of several runs, added up."""

    read: int = 0
    unaccounted: int = 0  # Frames without a row, or rows without a frame.
    accepted_twice: int = 0
    masks_checked: int = 0
    masks_wrong: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # Frames without a result, as `outcome(reason)`.
    ignored: Counter[str] = field(default_factory=Counter)  # Ignored replies, by reason.
    retried: int = 0
    retry_won: int = 0
    broken_promises: list[str] = field(default_factory=list)  # Findings of `skylane report RUN --check`.

    def add(self, folder: Path, mask_check: MaskCheck | None = None) -> None:
        """Adds a run.

        Raises:
            LogError: the log is missing or has another schema.
        """
        rows, manifest = list(read_rows(folder)), read_manifest(folder)
        frames = {(row["session"], row["sequence"]) for row in rows}
        with_result = [row for row in rows if row["outcome"] in WITH_RESULT]
        read = manifest.get("frames_read", 0)  # Missing if the run was killed and not repaired.
        self.read += read
        self.unaccounted += abs(read - len(frames))
        self.accepted_twice += len(with_result) - len({(row["session"], row["sequence"]) for row in with_result})
        self.outcomes.update(row["outcome"] for row in rows)
        self.reasons.update(f"{row['outcome']}({row['reason']})" for row in rows if row["outcome"] not in WITH_RESULT)
        self.ignored.update(manifest.get("ignored_answers", {}))
        retries = manifest.get("retries", {})
        self.retried += retries.get("retried", 0)
        self.retry_won += retries.get("won", 0)
        self.broken_promises += [f"{folder.name}: {problem}" for problem in audit(folder)]
        if mask_check is not None:
            checked, wrong = mask_check(folder)
            self.masks_checked += checked
            self.masks_wrong += wrong

    @property
    def unanswered(self) -> int:
        """Frames without a result, except those that were not sent because their vehicle was stopped."""
        return self.read - sum(self.outcomes[outcome] for outcome in WITH_RESULT) - self.reasons[_STOPPED]

    @property
    def by_outcome(self) -> dict[str, int]:
        """The number of frames with each outcome, also if there are none."""
        return {outcome.value: self.outcomes[outcome] for outcome in Outcome}

    @property
    def equation(self) -> str:
        """The frames read as the sum of their outcomes, such as "9 read = 7 answered + 2 lost"."""
        sums = [f"{self.outcomes[outcome]} {outcome}" for outcome in Outcome if self.outcomes[outcome]]
        return f"{self.read} read = {' + '.join(sums) or '0'}"

    @property
    def failures(self) -> list[str]:
        """Violations of the guarantee; empty if it holds."""
        found = list(self.broken_promises)
        if self.unaccounted or self.read != self.outcomes.total():
            found.append(f"{self.unaccounted} frames unaccounted for: {self.equation}")
        if self.accepted_twice:
            found.append(f"{self.accepted_twice} frames have two accepted masks")
        if self.masks_wrong:
            found.append(f"{self.masks_wrong} of {self.masks_checked} masks have a wrong label")
        return found


def outcome_sum(record: Mapping[str, Any]) -> str:
    """The frames read as the sum of all outcomes, for JSON output with `read` and `outcomes`."""
    return f"read {record['read']} = {' + '.join(f'{name} {count}' for name, count in record['outcomes'].items())}"


def recovery_ms(rows: Iterable[Mapping[str, str]], faults_ns: Sequence[int]) -> list[float]:
    """The waiting times of retried frames until their mask arrived, counted from the fault or the first attempt to send.

    The later of the two counts. With several faults, in order, the last one before the mask's arrival counts.
    """
    waits = []
    for row in rows:
        if row["outcome"] != Outcome.ANSWERED or not float(row["retry_wait_ms"]):
            continue
        arrived_ns = int(row["t_mask_decoded_ns"])
        first_sent_ns = int(row["t_sent_ns"]) - float(row["retry_wait_ms"]) * _NS_PER_MS
        fault_ns = faults_ns[max(0, bisect.bisect(faults_ns, arrived_ns) - 1)]
        waits.append((arrived_ns - max(fault_ns, first_sent_ns)) / _NS_PER_MS)
    return waits


def longest_gap_ms(rows: Iterable[Mapping[str, str]]) -> float:
    """The longest time between two consecutive replies; 0 if there are fewer than two."""
    arrived_ns = sorted(int(row["t_mask_decoded_ns"]) for row in rows if row["outcome"] == Outcome.ANSWERED)
    return max((later - earlier for earlier, later in pairwise(arrived_ns)), default=0) / _NS_PER_MS
