"""The natural order of names: frame_2 before frame_10."""

import re
from pathlib import PurePath

NaturalKey = tuple[list[tuple[int, str]], str]


def natural_key(name: str) -> NaturalKey:
    """Returns a sort key that compares the text of names, without regard to case, and their numbers, of any length.

    Names that differ only in case or in leading zeros are in the order of their characters.
    """
    # Text and numbers take turns, so that two names have the same kind at each position.
    parts = [part.casefold().lstrip("0") for part in re.split("([0-9]+)", name)]
    return [(len(part) if index % 2 else 0, part) for index, part in enumerate(parts)], name


def natural_path_key(path: PurePath) -> list[NaturalKey]:
    """Returns a sort key that compares paths folder by folder."""
    return [natural_key(part) for part in path.parts]
