"""Matches images with their ground truth by timestamp."""

from typing import Generic, TypeVar

_MAX_WAITING = 64  # Unmatched images or truths to keep; recorders write a pair close together.

Image = TypeVar("Image")
Truth = TypeVar("Truth")


class TimestampMatcher(Generic[Image, Truth]):
    """Keeps the first part of each pair until the other arrives, and counts the images without a truth."""

    def __init__(self) -> None:
        self.unmatched = 0
        self._images: dict[int, Image] = {}
        self._truths: dict[int, Truth] = {}

    def add_image(self, stamp_ns: int, image: Image) -> tuple[Image, Truth] | None:
        """Returns the pair that the image completes, or keeps the image and returns None."""
        if stamp_ns in self._truths:
            return image, self._truths.pop(stamp_ns)
        self._images[stamp_ns] = image
        if len(self._images) > _MAX_WAITING:
            del self._images[next(iter(self._images))]
            self.unmatched += 1
        return None

    def add_truth(self, stamp_ns: int, truth: Truth) -> tuple[Image, Truth] | None:
        """Returns the pair that the truth completes, or keeps the truth and returns None."""
        if stamp_ns in self._images:
            return self._images.pop(stamp_ns), truth
        self._truths[stamp_ns] = truth
        if len(self._truths) > _MAX_WAITING:
            del self._truths[next(iter(self._truths))]
        return None

    def end(self) -> None:
        """Counts the remaining images as unmatched."""
        self.unmatched += len(self._images)
