"""Checks of received model cards."""

from dataclasses import replace

import pytest

from shared.imaging.labels import Labels
from shared.messages.model_card import check_card
from shared.messages.msgpack_reader import MessageError
from shared.task import TASKS, task_named
from tests.edge.samples import CARD


def _labels(count: int) -> Labels:
    return Labels(tuple(str(number) for number in range(count)), ((0, 0, 0),) * count)


@pytest.mark.parametrize("task", TASKS)
def test_a_card_has_as_many_labels_as_its_task_allows(task: str) -> None:
    """Both limits are allowed."""
    for count in task_named(task).labels:
        card = replace(CARD, task=task, labels=_labels(count))
        assert check_card(card) is card


@pytest.mark.parametrize(
    ("task", "labels", "problem"),
    [
        ("depth", 2, "field 'task': 'depth' is not one of .*segmentation"),
        ("segmentation", 0, "field 'labels': a model of the task segmentation needs some"),
        ("segmentation", 257, "field 'labels': 257 classes of a mask: give at most 256"),
    ],
)
def test_a_card_of_no_possible_model_is_refused(task: str, labels: int, problem: str) -> None:
    """Its results could not be read or shown."""
    with pytest.raises(MessageError, match=problem):
        check_card(replace(CARD, task=task, labels=_labels(labels)))
