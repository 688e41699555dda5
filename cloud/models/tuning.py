"""What an engine takes to tune itself: memory, once for each batch size, and given back right after."""

from shared.runtime import malloc


class Tuning:
    """Knows the batch sizes that an engine has inferred. Several threads may share it."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()

    def inferred(self, size: int) -> None:
        """Told of each batch once it was inferred: behind the first one of a size, what tuning took is given back."""
        if size not in self._sizes:
            self._sizes.add(size)
            malloc.trim()
