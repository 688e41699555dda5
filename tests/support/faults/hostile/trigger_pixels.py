"""Trigger pixels: values of an image's first pixel that make the scenarios' model fail in a certain way."""

from enum import IntEnum

MODEL = "nasty"
_RED, _BLUE = 250, 13


class Mark(IntEnum):
    """The failure that the green value of the first pixel triggers."""

    RAISE = 101
    NAN = 102
    HANG = 103
    MEMORY = 104
    CRASH = 105

    @property
    def pixel(self) -> tuple[int, int, int]:
        """Returns the first pixel of an image: red, green, blue."""
        return _RED, int(self), _BLUE
