"""The small model of the end-to-end tests, and the synthetic runs of the report's."""

from tests.analysis.report.conftest import run, slower
from tests.pipeline.conftest import model, models

__all__ = ["model", "models", "run", "slower"]
