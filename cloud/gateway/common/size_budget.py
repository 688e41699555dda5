"""How much an answer may still take while it is written: as text a number takes several times its bytes."""

from cloud.gateway.common.errors import Kind, RefusedError


class Room:
    """The bytes that are left of an answer's; to be asked as each piece is made, and not when all of them have been."""

    def __init__(self, largest: int, form: str, instead: str = "") -> None:
        """`form`: how the outputs are written; `instead`: what else their caller could ask for, as the error says it."""
        self._left = largest
        self._problem = f"outputs of more than {largest} bytes, {form}: ask for fewer, or of fewer pictures{instead}"

    def take(self, size: int) -> None:
        """Take so many bytes.

        Raises:
            RefusedError: there are fewer.
        """
        self._left -= size
        if self._left < 0:
            raise RefusedError(Kind.UNPROCESSABLE, self._problem)

    def text(self, written: bytes) -> bytes:
        """The text given, for which there was room.

        Raises:
            RefusedError: there was not.
        """
        self.take(len(written))
        return written
