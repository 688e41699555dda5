"""Text from elsewhere, made harmless to whoever shows it."""


def printable(text: str) -> str:
    """A text with a blank for every character that a terminal would obey, and not show.

    What stands for the bytes of a file's name that are not UTF-8 stays: whoever writes it escapes it.
    """
    return text if text.isprintable() else "".join(char if _is_shown(char) else " " for char in text)


def _is_shown(char: str) -> bool:
    return char.isprintable() or "\ud800" <= char <= "\udfff"
