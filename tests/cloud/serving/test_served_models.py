import threading

import pytest

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.served_models import ServedModel, ServedModels
from shared.messages.msgpack_reader import MessageError
from shared.threads import ThreadGroup
from tests.support.tiny_model import Engine, model


def _served(
    name: str = "tiny", version: str = "1", engine: Engine | None = None, *, owns_model: bool = True
) -> ServedModel:
    served = model(name=name, version=version, engine=engine)
    replier = Replier("w", "cloud/w/s9")
    batcher = Batcher(served, replier, Admission(), Postprocessor(replier))
    return ServedModel(served, batcher, owns_model=owns_model)


def test_frames_without_a_version_use_the_current_one() -> None:
    """A frame with a version gets exactly that one."""
    serving = ServedModels()
    one, two, other = _served(), _served(version="2"), _served("other")
    for served_model in (one, other):
        serving.set_current(served_model)
    assert serving.set_current(two, keep=True) == ()
    assert serving.find("tiny", None) is two
    assert serving.find("tiny", "1") is one
    assert serving.find("tiny", "2") is two
    assert serving.find("other", None) is other
    assert (serving.is_current(one), serving.is_current(two)) == (False, True)
    assert [(card.name, card.version) for card in serving.cards()] == [("other", "1"), ("tiny", "2"), ("tiny", "1")]


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("huge", None, "huge is not served here: ask for tiny version 1"),
        ("tiny", "7", "tiny version 7 is not served here: ask for tiny version 1"),
    ],
)
def test_the_error_for_an_unknown_model_lists_the_served_ones(name: str, version: str | None, expected: str) -> None:
    """The vehicle receives it in the reply to its frame."""
    serving = ServedModels()
    serving.set_current(_served())
    with pytest.raises(MessageError, match=expected):
        serving.find(name, version)


def test_the_previous_version_is_removed_unless_it_is_kept() -> None:
    """Versions that were kept before remain."""
    serving = ServedModels()
    one, two, three = _served(), _served(version="2"), _served(version="3")
    serving.set_current(one)
    assert serving.set_current(two, keep=True) == ()
    assert serving.set_current(three) == (two,)
    assert {served_model.key[1] for served_model in serving.all} == {"1", "3"}
    assert serving.set_current(one) == (three,)
    assert serving.all == (one,)


def test_a_rebuilt_version_replaces_the_old_one() -> None:
    """During development, the file changes and the version does not."""
    serving = ServedModels()
    old, new = _served(), _served()
    serving.set_current(old)
    assert serving.set_current(new) == (old,)
    assert serving.all == (new,)


def test_the_highest_kept_version_becomes_current() -> None:
    """Versions are compared as numbers: 10 is higher than 9."""
    serving = ServedModels()
    for version in ("9", "10", "old", "11"):
        serving.set_current(_served(version=version), keep=True)
    (gone,) = serving.remove("tiny", "11")
    assert gone.key == ("tiny", "11")
    assert serving.find("tiny", None).key == ("tiny", "10")
    assert len(serving.remove("tiny")) == 3
    assert serving.names == ()
    assert serving.remove("tiny") == ()


@pytest.mark.parametrize("owns_model", [True, False])
def test_closing_ends_the_threads_and_frees_an_owned_model(*, owns_model: bool) -> None:
    """Otherwise each swap would leave a model in memory."""
    engine = Engine()
    served_model = _served(engine=engine, owns_model=owns_model)
    stopped = threading.Event()
    threads = ThreadGroup(stopped.set)
    served_model.start(threads)
    assert served_model.close()
    threads.join(0)
    assert engine.closed.is_set() is owns_model
    assert not served_model.batcher.reserve()
