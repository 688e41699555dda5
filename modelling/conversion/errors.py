"""What goes wrong when a model is converted."""

from shared.errors import SkylaneError


class ConversionError(SkylaneError):
    """A model cannot be written in a format."""

    def __init__(self, target: str, cause: object) -> None:
        self.target = target
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        super().__init__(f"cannot be written as {target}: {lines[0][:300] if lines else type(cause).__name__}")
