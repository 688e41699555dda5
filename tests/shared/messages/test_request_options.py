import pytest

from shared.messages.frame import RequestOptions
from shared.messages.model_card import check_request_options
from shared.messages.msgpack_reader import MessageError
from tests.shared.tasks.parts import card


def test_unknown_output_is_rejected_with_the_known_ones() -> None:
    """The check runs before anything is decoded or inferred."""
    with pytest.raises(MessageError, match="has no output speed, colour: ask for depth, flow"):
        check_request_options(RequestOptions(outputs=("depth", "speed", "colour")), card("tensors"))
    check_request_options(RequestOptions(outputs=("flow",)), card("tensors"))


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection"])
def test_other_tasks_have_no_named_outputs(task: str) -> None:
    """Only raw tensors have outputs to choose from."""
    with pytest.raises(MessageError, match="only models of raw tensors have named outputs"):
        check_request_options(RequestOptions(outputs=("mask",)), card(task))
    check_request_options(RequestOptions(), card(task))


@pytest.mark.parametrize(
    ("task", "codec", "reason"),
    [
        ("segmentation", "jpeg", "no mask codec 'jpeg': ask for raw, png, rle, lz4, zstd"),
        ("detection", "png", "no detection codec 'png': ask for raw, lz4, zstd"),
        ("classification", "jpeg", "no classification codec 'jpeg'"),
        ("tensors", "rle", "no tensors codec 'rle'"),
    ],
)
def test_codec_of_another_task_is_rejected(task: str, codec: str, reason: str) -> None:
    """The message lists the codecs of the task."""
    with pytest.raises(MessageError, match=reason):
        check_request_options(RequestOptions(codec), card(task))


@pytest.mark.parametrize(
    ("task", "top_k", "reason"),
    [
        ("segmentation", 1, "returns no ranked classes, its task is segmentation: leave top-k out"),
        ("classification", 200, "classes, not 200: ask for fewer"),
    ],
)
def test_invalid_top_k_is_rejected(task: str, top_k: int, reason: str) -> None:
    """Other tasks have no ranked classes, and a classifier only as many as it has labels."""
    with pytest.raises(MessageError, match=reason):
        check_request_options(RequestOptions(top_k=top_k), card(task))
    check_request_options(RequestOptions(top_k=1), card("classification"))
