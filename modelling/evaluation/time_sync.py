"""Pictures and what is true of them, brought together by their stamps."""

from typing import Generic, TypeVar

_MAX_WAITING = 64  # Pictures or truths that wait for each other; recorders write them side by side.

Picture = TypeVar("Picture")
Truth = TypeVar("Truth")


class TimestampMatcher(Generic[Picture, Truth]):
    """Holds what came first of a pair, and counts the pictures whose truth never came."""

    def __init__(self) -> None:
        self.unmatched = 0
        self._pictures: dict[int, Picture] = {}
        self._truths: dict[int, Truth] = {}

    def with_picture(self, stamp_ns: int, picture: Picture) -> tuple[Picture, Truth] | None:
        """The pair that a picture makes, or None: then it waits."""
        if stamp_ns in self._truths:
            return picture, self._truths.pop(stamp_ns)
        self._pictures[stamp_ns] = picture
        if len(self._pictures) > _MAX_WAITING:
            del self._pictures[next(iter(self._pictures))]
            self.unmatched += 1
        return None

    def with_truth(self, stamp_ns: int, truth: Truth) -> tuple[Picture, Truth] | None:
        """The pair that a truth makes, or None: then it waits."""
        if stamp_ns in self._pictures:
            return self._pictures.pop(stamp_ns), truth
        self._truths[stamp_ns] = truth
        if len(self._truths) > _MAX_WAITING:
            del self._truths[next(iter(self._truths))]
        return None

    def end(self) -> None:
        """Count the pictures that still wait as unmatched."""
        self.unmatched += len(self._pictures)
