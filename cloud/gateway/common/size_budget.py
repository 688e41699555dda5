"""A size limit that is checked while a response is being written: as text, a number takes several times its bytes."""

from cloud.gateway.common.errors import ApiError, ErrorCode


class SizeBudget:
    """The bytes that a response may still grow by. It is charged piece by piece, before the whole response exists."""

    def __init__(self, max_bytes: int, encoding: str, alternative: str = "") -> None:
        """`encoding` and `alternative` complete the error message: how outputs are written, and what to request instead."""
        self._remaining = max_bytes
        self._message = (
            f"outputs of more than {max_bytes} bytes, {encoding}: request fewer outputs or images{alternative}"
        )

    def charge(self, size: int) -> None:
        """Subtracts `size` bytes.

        Raises:
            ApiError: fewer bytes remain.
        """
        self._remaining -= size
        if self._remaining < 0:
            raise ApiError(ErrorCode.UNPROCESSABLE, self._message)

    def charged(self, text: bytes) -> bytes:
        """Charges the size of `text` and returns it.

        Raises:
            ApiError: fewer bytes remain.
        """
        self.charge(len(text))
        return text
