"""What became of the frames of several runs, and whether the promise holds: every frame one row, one mask at most."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.logs.audit import audit
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.run_manifest import read_manifest

NO_MASKS = "no mask was looked at: nothing tells whether labels are right"
_STOPPED = f"{Outcome.DROPPED}(stopped)"

Truth = Callable[[Path], tuple[int, int]]  # Of a run: how many masks were looked at, and how many had a wrong label.


@dataclass(slots=True)
class FrameAccounts:
    """The ledgers of several runs, added up."""

    read: int = 0
    unaccounted: int = 0  # Frames without a row, or rows without a frame.
    accepted_twice: int = 0
    masks_checked: int = 0
    masks_wrong: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # Of frames that were not answered, as `outcome(reason)`.
    ignored: Counter[str] = field(default_factory=Counter)  # Answers that were not taken, by reason.
    retried: int = 0
    retry_won: int = 0
    broken_promises: list[str] = field(default_factory=list)  # As `skylane report RUN --check` tells them.

    def add(self, folder: Path, truth: Truth | None = None) -> None:
        """Take a run in.

        Raises:
            LogError: there is no log, or it is one of another schema.
        """
        rows, manifest = list(read_rows(folder)), read_manifest(folder)
        frames = {(row["session"], row["sequence"]) for row in rows}
        answered = [row for row in rows if row["outcome"] == Outcome.ANSWERED]
        read = manifest.get("frames_read", 0)  # A run that was killed and not repaired tells none.
        self.read += read
        self.unaccounted += abs(read - len(frames))
        self.accepted_twice += len(answered) - len({(row["session"], row["sequence"]) for row in answered})
        self.outcomes.update(row["outcome"] for row in rows)
        self.reasons.update(f"{row['outcome']}({row['reason']})" for row in rows if row["outcome"] != Outcome.ANSWERED)
        self.ignored.update(manifest.get("ignored_answers", {}))
        retries = manifest.get("retries", {})
        self.retried += retries.get("retried", 0)
        self.retry_won += retries.get("won", 0)
        self.broken_promises += [f"{folder.name}: {problem}" for problem in audit(folder)]
        if truth is not None:
            checked, wrong = truth(folder)
            self.masks_checked += checked
            self.masks_wrong += wrong

    @property
    def unanswered(self) -> int:
        """Frames without an answer, but for those that were read and not sent when their vehicle was asked to end."""
        return self.read - self.outcomes[Outcome.ANSWERED] - self.reasons[_STOPPED]

    @property
    def equation(self) -> str:
        """The promise as a sum, outcomes without a frame left out."""
        sums = [f"{self.outcomes[outcome]} {outcome}" for outcome in Outcome if self.outcomes[outcome]]
        return f"{self.read} read = {' + '.join(sums) or '0'}"

    @property
    def verdict(self) -> str:
        """What must be 0, and how many masks were looked at."""
        return (
            f"unaccounted {self.unaccounted}, accepted twice {self.accepted_twice}, "
            f"wrong labels {self.masks_wrong} of {self.masks_checked} masks"
        )

    @property
    def failures(self) -> list[str]:
        """Where the promise does not hold; none where it does."""
        found = list(self.broken_promises)
        if self.unaccounted or self.read != self.outcomes.total():
            found.append(f"{self.unaccounted} frames unaccounted for: {self.equation}")
        if self.accepted_twice:
            found.append(f"{self.accepted_twice} frames have two accepted masks")
        if self.masks_wrong:
            found.append(f"{self.masks_wrong} of {self.masks_checked} masks have a wrong label")
        return found
