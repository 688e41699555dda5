from dataclasses import replace

from edge.reliability.ledger import Tally
from edge.reliability.reply_validation import ReplyOrigin
from edge.run_summary import answerers_told, retries_told, unused_told
from shared.messages.model_card import ModelCard

TALLY = Tally(3, 0, {}, {}, None)


def test_retries_are_told_with_what_they_were_good_for() -> None:
    """Whoever sees many in vain has slow workers and no dead ones."""
    assert list(retries_told(TALLY)) == []
    (line,) = retries_told(replace(TALLY, retried=5, retry_won=3, ignored_answers={"duplicate": 2}))
    assert line == (
        "5 frames met silence and were sent again: the second attempt answered 3; 2 answers came twice and were not taken"
    )


def test_an_address_that_was_given_in_vain_is_told() -> None:
    """A wrong port among several would be found by nobody: the others do its work."""
    assert list(unused_told({})) == []
    assert list(unused_told({"cloud-2:8001": "it cannot be reached"})) == [
        "WARNING: cloud-2:8001 got no frame: it cannot be reached"
    ]


def test_who_answered_is_told(card: ModelCard) -> None:
    """One line a worker; no warning where all are what was asked for."""
    answerers = {ReplyOrigin(name, "1", "openvino bf16", card.sha256): 7 for name in ("b", "a")}
    assert list(answerers_told(replace(TALLY, answerers=answerers), card)) == [
        "7 frames answered by a (tiny 1, openvino bf16, 000000000000)",
        "7 frames answered by b (tiny 1, openvino bf16, 000000000000)",
    ]


def test_several_models_by_one_name_are_warned_of(card: ModelCard) -> None:
    """Figures over two versions are of neither; the broker mixes them frame by frame."""
    answerers = {ReplyOrigin("a", "1", "tensorflow fp32", card.sha256): 1, ReplyOrigin("b", "2", "", "f" * 64): 1}
    *_, unknown, warning = answerers_told(replace(TALLY, answerers=answerers), card)
    assert unknown == "1 frames answered by b (tiny 2, engine not told, ffffffffffff)"
    assert warning.startswith("WARNING: 2 different models answered by the name of tiny")


def test_another_model_than_the_announced_one_is_warned_of(card: ModelCard) -> None:
    """It was swapped between the announcement and the first frame."""
    answerers = {ReplyOrigin("a", "2", "tensorflow fp32", "f" * 64): 1}
    *_, warning = answerers_told(replace(TALLY, answerers=answerers), card)
    assert warning == "WARNING: tiny was announced as version 1 (000000000000) and another one answered"
