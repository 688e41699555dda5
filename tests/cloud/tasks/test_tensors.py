from typing import Any

import numpy as np
import pytest

from cloud.tasks.task import check
from cloud.tasks.tensors import result
from shared.fields import MessageError
from shared.messages import Want
from shared.model_card import Task
from shared.results import Tensors
from tests.cloud.tasks.parts import card, manifest, message

OUTPUTS: dict[str, Any] = {"depth": np.arange(6, dtype=np.float16).reshape(2, 3), "flow": np.arange(4, dtype=np.int64)}


@pytest.mark.parametrize(
    ("wanted", "told"), [((), ["depth", "flow"]), (("flow",), ["flow"]), (("flow", "depth"), ["flow", "depth"])]
)
def test_what_was_asked_for_is_told(wanted: tuple[str, ...], told: list[str]) -> None:
    """All, where nothing was; each as the model gave it."""
    got = result(OUTPUTS, message(Want(outputs=wanted)), manifest(Task.TENSORS))
    assert isinstance(got, Tensors)
    assert list(got.values) == told
    for name, array in got.values.items():
        assert array is OUTPUTS[name]


def test_an_output_that_is_not_there_is_refused_with_those_that_are() -> None:
    """Before anything is decoded or inferred for it."""
    with pytest.raises(MessageError, match="has no output speed, colour: ask for depth, flow"):
        check(Want(outputs=("depth", "speed", "colour")), card(Task.TENSORS))
    check(Want(outputs=("flow",)), card(Task.TENSORS))


@pytest.mark.parametrize("task", [Task.SEGMENTATION, Task.CLASSIFICATION, Task.DETECTION])
def test_other_tasks_have_no_outputs_to_choose(task: Task) -> None:
    """Who asks for some would wait for them."""
    with pytest.raises(MessageError, match="a model of raw tensors alone has some to choose from"):
        check(Want(outputs=("mask",)), card(task))
    check(Want(), card(task))


@pytest.mark.parametrize(
    ("task", "codec", "reason"),
    [
        (Task.SEGMENTATION, "lz4", "no mask codec 'lz4': ask for raw, png, rle, zstd"),
        (Task.DETECTION, "png", "no detection codec 'png': ask for raw, lz4, zstd"),
        (Task.CLASSIFICATION, "jpeg", "no classification codec 'jpeg'"),
        (Task.TENSORS, "rle", "no tensors codec 'rle'"),
    ],
)
def test_a_codec_of_another_task_is_refused(task: Task, codec: str, reason: str) -> None:
    """A box is no picture."""
    with pytest.raises(MessageError, match=reason):
        check(Want(codec), card(task))
