"""A headless browser for tests of web pages."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from analysis.report.output.charts import find_browser

_IS_REQUIRED = os.environ.get("SKYLANE_REQUIRE_BROWSER") == "1"  # Set by .ci/run, where a skip is a failure.
_MISSING = "Chrome or Chromium is not installed: apt-get install chromium"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    executable = find_browser()
    if executable is None:
        if _IS_REQUIRED:
            pytest.fail(f"{_MISSING} (SKYLANE_REQUIRE_BROWSER=1)")
        pytest.skip(_MISSING)
    with sync_playwright() as playwright:
        # The sandbox does not work for root (as in a container).
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()
