import threading

import pytest

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Replier
from cloud.serving.served_models import Lane, Serving
from shared.encoding.msgpack_reader import MessageError
from shared.runtime.threads import ThreadGroup
from tests.support.tiny_model import Engine, model


def _lane(name: str = "tiny", version: str = "1", engine: Engine | None = None, *, owns_model: bool = True) -> Lane:
    served = model(name=name, version=version, engine=engine)
    batcher = Batcher(served, Replier("w", "cloud/w/s9"), Admission(), lambda *_: None)
    return Lane(served, batcher, owns_model=owns_model)


def test_a_frame_that_names_no_version_gets_the_current_one() -> None:
    """And one that names a version gets that one or none: another's masks would pass for it."""
    serving = Serving()
    one, two, other = _lane(), _lane(version="2"), _lane("other")
    for lane in (one, other):
        serving.place(lane)
    assert serving.place(two, keep=True) == ()
    assert serving.find("tiny", None) is two
    assert serving.find("tiny", "1") is one
    assert serving.find("tiny", "2") is two
    assert serving.find("other", None) is other
    assert (serving.is_current(one), serving.is_current(two)) == (False, True)
    assert [(card.name, card.version) for card in serving.cards()] == [("other", "1"), ("tiny", "2"), ("tiny", "1")]


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("huge", None, "huge is not served here: ask for tiny version 1"),
        ("tiny", "7", "tiny version 7 is not served here: ask for tiny version 1"),
    ],
)
def test_what_is_not_served_is_told_with_what_is(name: str, version: str | None, told: str) -> None:
    """It is the answer to the vehicle's frame."""
    serving = Serving()
    serving.place(_lane())
    with pytest.raises(MessageError, match=told):
        serving.find(name, version)


def test_the_version_that_was_current_makes_place_unless_it_is_kept() -> None:
    """Its memory is wanted; those kept before stay."""
    serving = Serving()
    one, two, three = _lane(), _lane(version="2"), _lane(version="3")
    serving.place(one)
    assert serving.place(two, keep=True) == ()
    assert serving.place(three) == (two,)
    assert {lane.key[1] for lane in serving.lanes} == {"1", "3"}
    assert serving.place(one) == (three,)
    assert serving.lanes == (one,)


def test_a_version_that_was_built_anew_takes_the_place_of_its_namesake() -> None:
    """While a model is worked on its version stays and its file changes."""
    serving = Serving()
    old, new = _lane(), _lane()
    serving.place(old)
    assert serving.place(new) == (old,)
    assert serving.lanes == (new,)


def test_the_highest_of_those_kept_follows_a_current_version_that_goes() -> None:
    """10 is higher than 9."""
    serving = Serving()
    for version in ("9", "10", "old", "11"):
        serving.place(_lane(version=version), keep=True)
    (gone,) = serving.remove("tiny", "11")
    assert gone.key == ("tiny", "11")
    assert serving.find("tiny", None).key == ("tiny", "10")
    assert len(serving.remove("tiny")) == 3
    assert serving.models == ()
    assert serving.remove("tiny") == ()


@pytest.mark.parametrize("owns_model", [True, False])
def test_a_closed_lane_ends_its_thread_and_frees_the_model_that_is_its_own(*, owns_model: bool) -> None:
    """What a swap leaves behind would add up to the whole memory."""
    engine = Engine()
    lane = _lane(engine=engine, owns_model=owns_model)
    stopped = threading.Event()
    threads = ThreadGroup(stopped.set)
    lane.start(threads)
    assert lane.close()
    threads.join(0)
    assert engine.closed.is_set() is owns_model
    assert not lane.batcher.reserve()
