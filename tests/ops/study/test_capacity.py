from collections.abc import Callable

import pytest

from ops.study.runner import CapacityStep, search_capacity


def _at(limit: int, tried: list[int]) -> Callable[[int], CapacityStep]:
    def attempt(vehicles: int) -> CapacityStep:
        tried.append(vehicles)
        return CapacityStep(vehicles, 1.0, 0.0, 1.0, "" if vehicles <= limit else "too slow")

    return attempt


@pytest.mark.parametrize("most", [1, 2, 7, 16, 31])
def test_the_search_finds_every_capacity_in_few_attempts(most: int) -> None:
    """An attempt takes a minute with real vehicles, so none may be repeated or unnecessary."""
    for limit in range(most + 3):
        tried: list[int] = []
        found = search_capacity(_at(limit, tried), most)
        assert found.vehicles == min(limit, most)
        assert found.is_bounded == (limit < most)
        assert len(set(tried)) == len(tried) <= 2 * most.bit_length() + 2
        assert max(tried) <= most


def test_the_search_doubles_then_bisects() -> None:
    """The steps are a table of the study, and the documentation describes their order."""
    tried: list[int] = []
    assert search_capacity(_at(5, tried), 64).vehicles == 5
    assert tried == [1, 2, 4, 8, 6, 5]


def test_the_capacity_is_zero_if_one_vehicle_does_not_fit() -> None:
    """The step has the reason."""
    found = search_capacity(_at(0, []), 8)
    assert found.vehicles == 0
    assert [step.reason for step in found.steps] == ["too slow"]
