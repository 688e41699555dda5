"""Marks: what a picture's first pixel has the scenarios' model do, instead of answering."""

from enum import IntEnum

MODEL = "nasty"
_RED, _BLUE = 250, 13


class Mark(IntEnum):
    """What happens to a frame, by the green of its first pixel."""

    RAISE = 101
    NAN = 102
    HANG = 103
    MEMORY = 104
    CRASH = 105

    @property
    def pixel(self) -> tuple[int, int, int]:
        """What a picture's first pixel is: red, green, blue."""
        return _RED, int(self), _BLUE
