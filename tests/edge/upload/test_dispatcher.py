"""Distribution of images over workers."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.upload.client import ImageRefusedError, ImageResult, UploadClient, WorkerBusyError, WorkerLostError
from edge.upload.dispatcher import UploadDispatcher, UploadOutcome

WAIT_S = 60.0
IMAGES = [Path(f"{number}.png") for number in range(20)]


class FakeClient(UploadClient):
    """A client that calls a function for each image."""

    def __init__(self, act: Callable[[Path], None] = lambda _: None) -> None:
        self._act = act

    def upload(self, image: Path) -> ImageResult:
        """See UploadClient."""
        self._act(image)
        return ImageResult({}, 1, 1.0, 1.0)

    def close(self) -> None:
        """See UploadClient."""


def dispatch(workers: dict[str, Callable[[], UploadClient]]) -> tuple[UploadDispatcher, list[UploadOutcome]]:
    """Uploads the images to workers with one connection each."""
    outcomes: list[UploadOutcome] = []
    dispatcher = UploadDispatcher(IMAGES, outcomes.append, busy_pause_s=0.0)
    dispatcher.run({name: [connect] for name, connect in workers.items()})
    assert sorted(each.image for each in outcomes) == sorted(IMAGES)
    return dispatcher, outcomes


def test_a_slow_worker_gets_fewer_images() -> None:
    """With a fixed rotation, the slowest worker would set the pace of all."""
    others = threading.Semaphore(0)

    def slow(_: Path) -> None:
        for _image in IMAGES[1:]:
            assert others.acquire(timeout=WAIT_S)

    _, outcomes = dispatch({"slow": lambda: FakeClient(slow), "quick": lambda: FakeClient(lambda _: others.release())})
    assert Counter(each.worker for each in outcomes) == {"slow": 1, "quick": 19}


def test_the_image_of_a_lost_worker_goes_to_another() -> None:
    """No image is lost, and the lost worker is reported."""
    dead = threading.Event()

    def die(_: Path) -> None:
        dead.set()
        raise WorkerLostError("hung up")

    dispatcher, outcomes = dispatch(
        {"dead": lambda: FakeClient(die), "other": lambda: FakeClient(lambda _: _wait(dead))}
    )
    assert Counter(each.worker for each in outcomes if each.result) == {"other": 20}
    assert dispatcher.lost == {"dead": "hung up"}


def test_a_refused_image_is_not_sent_again() -> None:
    """The other workers run the same model."""

    def refuse(image: Path) -> None:
        if image == IMAGES[3]:
            raise ImageRefusedError("rejected: too small")

    _, outcomes = dispatch({"one": lambda: FakeClient(refuse), "two": lambda: FakeClient(refuse)})
    faults = [(each.image, each.fault) for each in outcomes if each.result is None]
    assert faults == [(IMAGES[3], "rejected: too small")]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_run_ends_when_no_worker_is_left(workers: int) -> None:
    """An image on which three workers failed is not tried on a fourth."""

    def die(image: Path) -> None:
        if image == IMAGES[0]:
            raise WorkerLostError("crashed")

    _, outcomes = dispatch({f"worker-{number}": lambda: FakeClient(die) for number in range(workers)})
    faults = {each.image: each.fault for each in outcomes if each.result is None}
    assert "no worker is left" in faults[IMAGES[0]] or "3 workers failed" in faults[IMAGES[0]]


def test_a_worker_that_cannot_be_reached_is_lost() -> None:
    """The other workers do its work."""

    def refuse() -> UploadClient:
        raise WorkerLostError("refused")

    dispatcher, outcomes = dispatch({"unreachable": refuse, "other": FakeClient})
    assert {each.worker for each in outcomes} == {"other"}
    assert dispatcher.lost == {"unreachable": "refused"}


def test_a_busy_worker_gets_the_image_again() -> None:
    """An overload is no failure of the image, and no reason to give the worker up."""
    busy_replies = iter(range(5))

    def act(_: Path) -> None:
        if next(busy_replies, None) is not None:
            raise WorkerBusyError("overloaded")

    dispatcher, outcomes = dispatch({"busy": lambda: FakeClient(act)})
    assert all(each.result for each in outcomes)
    assert not dispatcher.lost


def test_a_worker_that_stays_busy_is_lost() -> None:
    """The run must end."""

    def act(_: Path) -> None:
        raise WorkerBusyError("overloaded")

    dispatcher, outcomes = dispatch({"busy": lambda: FakeClient(act)})
    assert dispatcher.lost == {"busy": "overloaded"}
    assert {each.fault for each in outcomes} == {"no worker is left"}


def test_images_that_wait_when_the_run_is_stopped_are_named_as_such() -> None:
    """The user has ended it; no worker was lost."""
    outcomes: list[UploadOutcome] = []
    dispatcher = UploadDispatcher(IMAGES, outcomes.append)
    dispatcher.run({"one": [lambda: FakeClient(lambda _: dispatcher.stop())]})
    assert not dispatcher.lost
    assert [each.fault for each in outcomes] == ["", *["stopped"] * (len(IMAGES) - 1)]


def test_an_unexpected_exception_ends_the_run() -> None:
    """A bug must not look like a failed image."""

    def fail(_: Path) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        UploadDispatcher(IMAGES, lambda _: None).run({"one": [lambda: FakeClient(fail)]})


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)
