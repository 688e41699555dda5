import pytest

from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import RequestOptions
from shared.messages.model_card import Task
from shared.messages.request_options import check_request_options
from tests.cloud.tasks.parts import card


def test_an_output_that_is_not_there_is_refused_with_those_that_are() -> None:
    """Before anything is decoded or inferred for it."""
    with pytest.raises(MessageError, match="has no output speed, colour: ask for depth, flow"):
        check_request_options(RequestOptions(outputs=("depth", "speed", "colour")), card(Task.TENSORS))
    check_request_options(RequestOptions(outputs=("flow",)), card(Task.TENSORS))


@pytest.mark.parametrize("task", [Task.SEGMENTATION, Task.CLASSIFICATION, Task.DETECTION])
def test_other_tasks_have_no_outputs_to_choose(task: Task) -> None:
    """Who asks for some would wait for them."""
    with pytest.raises(MessageError, match="a model of raw tensors alone has some to choose from"):
        check_request_options(RequestOptions(outputs=("mask",)), card(task))
    check_request_options(RequestOptions(), card(task))


@pytest.mark.parametrize(
    ("task", "codec", "reason"),
    [
        (Task.SEGMENTATION, "jpeg", "no mask codec 'jpeg': ask for raw, png, rle, lz4, zstd"),
        (Task.DETECTION, "png", "no detection codec 'png': ask for raw, lz4, zstd"),
        (Task.CLASSIFICATION, "jpeg", "no classification codec 'jpeg'"),
        (Task.TENSORS, "rle", "no tensors codec 'rle'"),
    ],
)
def test_a_codec_of_another_task_is_refused(task: Task, codec: str, reason: str) -> None:
    """A box is no picture."""
    with pytest.raises(MessageError, match=reason):
        check_request_options(RequestOptions(codec), card(task))


@pytest.mark.parametrize(
    ("task", "top_k", "reason"),
    [
        (Task.SEGMENTATION, 1, "tells no best classes, its task is segmentation: leave top-k out"),
        (Task.CLASSIFICATION, 200, "classes, not 200: ask for fewer"),
    ],
)
def test_more_classes_than_there_are_cannot_be_told(task: Task, top_k: int, reason: str) -> None:
    """Who asks for them has another model in mind."""
    with pytest.raises(MessageError, match=reason):
        check_request_options(RequestOptions(top_k=top_k), card(task))
    check_request_options(RequestOptions(top_k=1), card(Task.CLASSIFICATION))
