"""Checks of what a program passes to the Python API."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shared.errors import SkylaneError


class ArgumentError(SkylaneError):
    """An argument has a type or a value that the function does not take."""

    def __init__(self, name: str, value: object, remedy: str) -> None:
        self.name = name
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}…"  # One line in a terminal.
        super().__init__(f"{name} is {shown} ({type(value).__name__}): {remedy}")


def text_argument(name: str, value: object, remedy: str) -> str:
    """Returns text; raises an ArgumentError with the remedy if it is none, or empty."""
    if not isinstance(value, str) or not value:
        raise ArgumentError(name, value, remedy)
    return value


def path_argument(name: str, value: object, noun: str) -> Path:
    """Returns a path given as text or as a path object; `noun` says of what, such as "a bag".

    Raises:
        ArgumentError: it is neither, or empty.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentError(name, value, f"give the path of {noun}, as text or as a pathlib.Path")
    return Path(text)


def list_argument(name: str, value: Any, noun: str, *single: type) -> list[Any]:
    """Returns one or several values as a list; text, a path or an instance of `single` is one value.

    Raises:
        ArgumentError: it is neither a value nor an iterable of them.
    """
    if isinstance(value, (str, os.PathLike, *single)):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise ArgumentError(name, value, f"give {noun}, or a list of them")
    return list(value)
