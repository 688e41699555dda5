"""The small model of the end-to-end tests."""

from tests.pipeline.conftest import model, models

__all__ = ["model", "models"]
