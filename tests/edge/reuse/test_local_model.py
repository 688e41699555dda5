"""The local model in its own thread: failures, and the time limit."""

import threading
from collections.abc import Callable

import numpy as np

from edge.reuse.local_model import RAISED, TIMED_OUT, LocalModel
from shared.inference.errors import InferenceError
from tests.support import tiny_model
from tests.support.tiny_model import HEIGHT, WIDTH, Engine

WAIT_S = 60.0
IMAGE = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)


def local_model(act: Callable[[], None] = lambda: None, timeout_s: float = WAIT_S) -> tuple[LocalModel, Engine]:
    """Starts the tiny model, which returns the first channel of an image."""
    engine = Engine(act)
    return LocalModel(tiny_model.model(engine=engine), timeout_s), engine


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


def test_three_failures_in_a_row_switch_it_off() -> None:
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
    assert local.off_reason == "it failed 3 times in a row: the model failed: no memory"
    assert local.failures == {RAISED: 5}
    local.close()


def test_a_hang_switches_it_off() -> None:
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
    released.set()
