"""Nothing of a run leaves the machine: neither by the processes of a view, nor by Rerun's page in a browser."""

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
from tests.edge.view.watching import processes, record, show, until, watched
from tests.support.browser import browser

__all__ = ["browser"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
@pytest.mark.parametrize("viewer", ["rerun", "foxglove"])
def test_no_process_connects_to_another_machine(viewer: str, tmp_path: Path) -> None:
    """Rerun collects usage data by default. `strace` sees every connection of the process and those that it starts."""
    made = record(0)
    assert made.image is not None
    assert made.geometry is not None
    frame = FrameResult("/left", 0, 0, 7, 7, made.image.astype(np.uint8), np.zeros((8, 12), np.uint8), made.geometry)
    traced = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(tmp_path / "calls")]
    process = subprocess.Popen(
        [*traced, sys.executable, "-m", "edge.view.view_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
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


def test_rerun_writes_nothing_into_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Its first start would write an identity there, and usage data to send later."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with watched("rerun", log_lines) as (view, _):
        show(view, record(0))
        until(lambda: len(processes()) > 1)
    assert [path for path in tmp_path.rglob("*") if "rerun" in str(path)] == []


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
