"""Makes text from other sources safe to print."""


def printable(text: str) -> str:
    """Replaces control and other unprintable characters by blanks.

    Surrogates, which stand for bytes of file names that are not UTF-8, are kept; writers escape them.
    """
    return text if text.isprintable() else "".join(char if _is_kept(char) else " " for char in text)


def _is_kept(char: str) -> bool:
    return char.isprintable() or "\ud800" <= char <= "\udfff"
