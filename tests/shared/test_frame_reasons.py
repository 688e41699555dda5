"""The reasons of frames as labels of metrics."""

import pytest

from cloud.serving import request
from edge.transports.transport import NO_BROKER, NO_WORKER
from shared.frame_reasons import LABELS, OTHER, reason_label
from shared.mqtt.bus import LINK_JAMMED


@pytest.mark.parametrize(
    "refusal",
    [request.CLIENT_GONE, request.EXPIRED_IN_QUEUE, request.EXPIRED_BEFORE_INFERENCE, request.TOO_LATE],
)
def test_each_refusal_of_the_worker_has_a_label_of_its_own(refusal: request.Refusal) -> None:
    """A text that is changed would be counted as `other` without notice."""
    assert reason_label(refusal.reason) not in (OTHER, "", "answered_late")


@pytest.mark.parametrize("word", [NO_WORKER, NO_BROKER, LINK_JAMMED, "window", "deadline", "stopped"])
def test_the_words_of_the_vehicle_are_their_own_labels(word: str) -> None:
    """They are the reasons in its log."""
    assert reason_label(word) == word


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("", ""),
        ("undecodable: image is truncated", "undecodable"),
        ("too_large: 70000000 bytes of 67108864", "too_large"),
        ("poison: engine ended", "poison"),
        ("17 frames are waiting", "queue_full"),
        ("tiny version 9 is not served here: ask for tiny version 1", "not_served"),
        ("vehicle car is blocked for 5 s: 3 of its frames ended the engine's process", "blocked"),
        ("internal error in decoding (ValueError): see the worker's log", "internal_error"),
        ("reused after the deadline", "answered_late"),
        ("made up", OTHER),
        (": window", OTHER),
        ("WINDOW", OTHER),
        ("window\x1b[2J", OTHER),
        ("x" * 10_000, OTHER),
    ],
)
def test_texts_become_words(reason: str, label: str) -> None:
    """Numbers and names are left out."""
    assert reason_label(reason) == label
    assert label in LABELS
