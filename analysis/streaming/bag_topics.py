"""Reads the stored results of a run and the true labels of a bag, one message at a time, by stamp."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from modelling.evaluation.segmentation import EvaluationError
from rosbag_tools.messages.ros_types import MalformedMessageError, read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from shared.errors import SkylaneError

T = TypeVar("T")

_CAMERA_TOPIC = "/image_raw"


class StampedTopic(Generic[T]):
    """The messages of a topic by position. Reading them in order costs one pass over the bag, at any length of the bag."""

    def __init__(self, bag: Bag, topic: str, decode: Callable[[Message], T]) -> None:
        """Reads the stamps of all messages. `decode` may raise a SkylaneError."""
        self.topic = topic
        self._bag = bag
        self._decode = decode
        self.stamps_ns = [stamp_ns for stamp_ns, _ in self._messages()]
        self._first = {stamp_ns: index for index, stamp_ns in reversed(list(enumerate(self.stamps_ns)))}
        self._open: Iterator[tuple[int, Message]] = iter(())
        self._next = len(self.stamps_ns)
        self._last: tuple[int, T | None] = (-1, None)

    def find(self, stamp_ns: int) -> int | None:
        """Returns the position of the first message with a stamp; None if there is none."""
        return self._first.get(stamp_ns)

    def read(self, position: int) -> T | None:
        """Returns the decoded message at a position; None if it cannot be decoded."""
        if self._last[0] != position:
            message = self._message(position)
            try:
                self._last = (position, self._decode(message))
            except EvaluationError:
                raise
            except SkylaneError:
                self._last = (position, None)
        return self._last[1]

    def _message(self, position: int) -> Message:
        if position < self._next:
            self._open, self._next = self._messages(), 0
        for _, message in self._open:
            self._next += 1
            if self._next > position:
                return message
        raise EvaluationError(f"{self._bag.path} changed while it was read: {self.topic} has fewer messages now")

    def _messages(self) -> Iterator[tuple[int, Message]]:
        """Yields the stamp and the message of every readable message."""
        for message in self._bag.messages({self.topic}):
            if isinstance(message, Message):
                try:
                    yield read_stamp(message), message
                except MalformedMessageError:
                    continue


def positions_of(frames: Sequence[tuple[int, int | None]], stamps_ns: Sequence[int]) -> dict[int, int]:
    """Returns the position of the stored result of each frame, which lacks the frames whose result is not stored.

    Both are in the same order. A drive that is played repeatedly has the same stamps again, so a frame takes the first
    result of its stamp that comes after that of the frame before.

    Args:
        frames: Sequence number and stamp of the frames with a result.
        stamps_ns: The stamps of the stored results.
    """
    rows: dict[int, list[int]] = {}
    for row, (_, stamp_ns) in enumerate(frames):
        if stamp_ns is not None:
            rows.setdefault(stamp_ns, []).append(row)
    positions: dict[int, int] = {}
    last = -1
    for position, stamp_ns in enumerate(stamps_ns):
        candidates = rows.get(stamp_ns, [])
        index = bisect_right(candidates, last)
        if index < len(candidates):
            last = candidates[index]
            positions[frames[last][0]] = position
    return positions


def topic_of(camera: str, suffix: str) -> str:
    """Returns the topic of a camera's results or labels, without a leading slash: `left/image_raw` → `left/<suffix>`."""
    return f"{camera.strip('/').removesuffix(_CAMERA_TOPIC)}/{suffix}"


def named_topic(bag: Bag, name: str) -> str | None:
    """Returns the name of a topic as it is in the bag, with or without a leading slash; None if there is no such topic."""
    return next((topic.name for topic in bag.topics if topic.name.strip("/") == name), None)


@contextmanager
def opened(path: Path, problem: str) -> Iterator[Bag]:
    """Opens a bag; `problem` is the begin of the error message.

    Raises:
        EvaluationError: It is missing or cannot be read.
    """
    try:
        bag = Bag(path)
    except SkylaneError as error:
        raise EvaluationError(f"{problem}: {error}") from error
    with bag:
        yield bag
