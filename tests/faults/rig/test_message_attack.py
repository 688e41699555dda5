from itertools import islice
from pathlib import Path

import pytest

from tests.support.faults.hostile.message_attack import AttackResult, attack_vehicle, attack_worker
from tests.support.faults.hostile.messages import for_worker

SEED = 5


def _is_balanced(result: AttackResult, count: int) -> bool:
    return result.delivered + result.unsubscribed == count and result.unaccounted == 0


@pytest.mark.parametrize("floods", [False, True])
def test_a_worker_answers_or_counts_every_broken_message(*, floods: bool) -> None:
    """The scenario sends a million broken messages; this test sends some of each kind."""
    result = attack_worker(2500, SEED, floods=floods)
    assert _is_balanced(result, 2500), result
    for name in ("masks published", "replies published", "unreadable", "frame_topic", "control_refused_unreadable"):
        assert result.accounted[name], name


def test_a_vehicle_accepts_or_counts_every_broken_message(tmp_path: Path) -> None:
    """Any worker may send a vehicle any bytes."""
    result = attack_vehicle(2500, SEED, tmp_path / "run")
    assert _is_balanced(result, 2500), result
    for name in ("answered", "unreadable", "late_or_repeated", "echo_unreadable", "echo_topic"):
        assert result.accounted[name], name


def test_the_same_seed_gives_the_same_messages() -> None:
    """A message that caused a failure can then be produced again."""
    names = {"worker": "w", "model": "m", "vehicle": "car", "height": 4, "width": 6}
    one, same, other = (list(islice(for_worker(seed, **names), 200)) for seed in (1, 1, 2))  # type: ignore[arg-type]  # The dict has strings and integers.
    assert one == same
    assert one != other
