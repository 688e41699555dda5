"""Makes text from other sources safe to print, and safe in a spreadsheet."""

_FORMULA_STARTS = tuple("=+-@＝＋－＠")  # A spreadsheet would evaluate such a text.


def printable(text: str) -> str:
    """Replaces control and other unprintable characters by blanks.

    Surrogates, which stand for bytes of file names that are not UTF-8, are kept; writers escape them.
    """
    return text if text.isprintable() else "".join(char if _is_kept(char) else " " for char in text)


def printable_lines(text: str) -> str:
    """Same as `printable`, but keeps line breaks."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def csv_text(text: str) -> str:
    """Returns a text of unknown origin as a cell of a CSV file: printable, and no formula for a spreadsheet."""
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _is_kept(char: str) -> bool:
    return char.isprintable() or "\ud800" <= char <= "\udfff"
