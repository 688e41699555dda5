"""The table of outcomes."""

import pandas as pd

from analysis.report.chapters.run.outcomes import table


def test_each_reason_of_a_drop_is_listed_with_its_count() -> None:
    """A lost broker, a missing worker and a full window have different remedies; the details of a refusal do not count."""
    reasons = ["no_broker"] * 3 + ["no_worker"] * 2 + ["window"]
    reasons += [f"broker_refused: Implementation specific error: {size} bytes are …" for size in (442_080, 442_081)]
    frames = pd.DataFrame({"outcome": ["dropped"] * len(reasons), "reason": reasons})
    ((outcome, count, _, _, listed),) = table(frames).rows
    assert (outcome, count) == ("dropped", 8)
    assert listed == "no_broker 3, no_worker 2, broker_refused 2, window 1"
