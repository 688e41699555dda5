"""The local model in its own thread: failures, and the time limit."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from edge.reuse.local_model import RAISED, TIMED_OUT, LocalModel, LocalModelError
from shared.errors import SkylaneError
from shared.inference.engine import InferenceError
from shared.inference.model import Model
from tests.support import tiny_model
from tests.support.tiny_model import HEIGHT, WIDTH, Engine

WAIT_S = 60.0
IMAGE = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)


def local_model(
    act: Callable[[], None] = lambda: None, timeout_s: float = WAIT_S, pause_s: float = 3600.0
) -> tuple[LocalModel, Engine]:
    """Starts the tiny model, which returns the first channel of an image."""
    engine = Engine(act)
    return LocalModel(lambda: tiny_model.model(engine=engine), timeout_s, pause_s=pause_s), engine


def test_it_infers_one_image_without_a_batch() -> None:
    """The thread ends with `close`, which closes the model."""
    local, engine = local_model()
    outputs = local.infer(IMAGE[:, ::-1])
    assert outputs is not None
    np.testing.assert_array_equal(outputs["mask"], IMAGE[..., 0])
    assert local.median_ms is not None
    local.close()
    assert engine.closed.is_set()
    assert "local model" not in {thread.name for thread in threading.enumerate()}


def test_three_failures_in_a_row_pause_it() -> None:
    """Single failures are counted, and their frames go to the workers."""
    fails = iter([True, True, False, True, True, True])

    def act() -> None:
        if next(fails):
            raise InferenceError("the model failed: no memory")

    local, _ = local_model(act)
    answers = []
    for _ in range(5):
        answers.append(local.infer(IMAGE) is not None)
        assert local.is_on
    assert answers == [False, False, True, False, False]
    assert local.infer(IMAGE) is None
    assert not local.is_on
    assert local.counts()["switched_off"] == "it failed 3 times in a row: the model failed: no memory"
    assert local.failures == {RAISED: 5}
    local.close()


def test_a_model_that_hangs_is_not_called_again() -> None:
    """The caller continues after the time limit, and the end of the run does not wait for the model."""
    released = threading.Event()

    def hang() -> None:
        released.wait(WAIT_S)

    local, engine = local_model(hang, timeout_s=0.05)
    assert local.infer(IMAGE) is None
    assert not local.is_on
    assert local.failures == {TIMED_OUT: 1}
    local.close()
    assert not engine.closed.is_set()  # It is in use until the process ends.
    (thread,) = (each for each in threading.enumerate() if each.name == "local model")
    released.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_model_that_was_too_slow_once_is_tried_again() -> None:
    """A busy moment must not cost the rest of the run; the late answer is never taken for that of another image."""
    released = threading.Event()

    def hang() -> None:
        released.wait(WAIT_S)

    local, _ = local_model(hang, timeout_s=0.05, pause_s=0.0)
    outputs = local.infer(IMAGE)
    assert outputs is None
    assert [local.is_on] == [False]  # It has not returned yet.
    released.set()
    while outputs is None:  # On a busy machine it may be too slow again.
        outputs = local.infer(IMAGE + 1) if local.is_on else None
    np.testing.assert_array_equal(outputs["mask"], IMAGE[..., 0] + 1)
    assert local.pauses >= 1
    local.close()


def test_a_model_that_hangs_while_it_is_opened_is_an_error() -> None:
    """The command must end by itself: Ctrl-C does not interrupt a library in the main thread."""
    released = threading.Event()

    def open_model() -> Model:
        released.wait(WAIT_S)
        return tiny_model.model()

    with pytest.raises(LocalModelError, match=r"did not answer its first images within 0\.05 s"):
        LocalModel(open_model, WAIT_S, opening_timeout_s=0.05)
    (thread,) = (each for each in threading.enumerate() if each.name == "local model")
    released.set()
    thread.join(WAIT_S)  # It does not wait for images.
    assert not thread.is_alive()


def test_the_error_of_a_model_that_cannot_be_opened_is_raised_as_it_is() -> None:
    """It names the file and what to do."""

    def open_model() -> Model:
        raise SkylaneError("model.onnx is damaged")

    with pytest.raises(SkylaneError, match=r"model\.onnx is damaged"):
        LocalModel(open_model, WAIT_S)
