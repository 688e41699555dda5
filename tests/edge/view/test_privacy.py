"""Nothing of a run leaves the machine: neither by the processes of a view, nor by Rerun's page in a browser."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Request

from edge.sinks.sink import FrameResult
from edge.view.viewer import ViewSettings, ViewUpdate
from tests.edge.samples import CARD
from tests.edge.view.watching import record, show, watched
from tests.support.browser import browser

__all__ = ["browser"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
@pytest.mark.parametrize("viewer", ["rerun", "foxglove"])
def test_no_process_connects_to_another_machine_or_writes_settings(viewer: str, tmp_path: Path) -> None:
    """Rerun collects usage data by default, and its first start writes an identity and data to send later.

    `strace` sees every connection of the process and those that it starts.
    """
    made = record(0)
    assert made.image is not None
    assert made.geometry is not None
    frame = FrameResult("/left", 0, 0, 7, 7, made.image.astype(np.uint8), np.zeros((8, 12), np.uint8), made.geometry)
    traced = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(tmp_path / "calls")]
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    process = subprocess.Popen(
        [*traced, sys.executable, "-m", "edge.view.view_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**environment, "HOME": str(home)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(ViewSettings(viewer, "127.0.0.1", CARD)))
    process.stdin.flush()
    assert b"address" in process.stdout.readline()
    for _ in range(3):
        process.stdin.write(pickle.dumps(ViewUpdate(7, [(7, frame)], [], {}, 0)))
        process.stdin.flush()
        process.stdout.readline()
    process.stdin.close()
    process.stdout.close()
    assert process.wait(60) == 0
    calls = (tmp_path / "calls").read_text(errors="replace").splitlines()
    addressed = [line for line in calls if "AF_INET" in line]
    assert [line for line in addressed if not re.search(r'"127\.0\.0\.1"|"::1"', line)] == []
    assert bool(addressed) == (viewer == "rerun")
    assert [path for path in home.rglob("*") if "rerun" in str(path.relative_to(home))] == []


def test_the_page_connects_to_this_machine_only(
    log_lines: Callable[[], list[dict[str, Any]]], browser: Browser
) -> None:
    """Without the policy, it sends usage data, asks for new releases and fetches fonts."""
    reached: list[str] = []
    refused: list[str] = []
    page = browser.new_page()

    def note(request: Request) -> None:
        (refused if request.failure == "csp" else reached).append(request.url)

    page.on("requestfinished", note)
    page.on("requestfailed", note)
    page.on("console", lambda message: refused.append(message.text) if "Content Security" in message.text else None)
    with watched("rerun", log_lines) as (view, address):
        show(view, record(0))
        with page.expect_request(
            lambda request: "ReadMessages" in request.url
        ):  # It runs, and asks for what was shown.
            page.goto(address)
        page.wait_for_timeout(1000)
        page.close()
    assert reached
    assert [url for url in reached if not url.startswith(("http://127.0.0.1:", "blob:", "data:"))] == []
