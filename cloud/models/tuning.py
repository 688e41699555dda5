"""Releases the memory that an engine needs only to tune itself for a new batch size."""

from shared.runtime import malloc


class TuningMemory:
    """Returns free memory to the system after the first batch of each size. Thread-safe."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()

    def inferred(self, size: int) -> None:
        """Must be called after each batch."""
        if size not in self._sizes:
            self._sizes.add(size)
            malloc.trim()
