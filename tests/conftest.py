"""Fixtures of all tests: real brokers on free ports, and an account of what was skipped for want of Mosquitto."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from shared.broker.broker import Broker
from shared.broker.mosquitto import MOSQUITTO_MISSING, find_mosquitto

REQUIRED = os.environ.get("SKYLANE_REQUIRE_MOSQUITTO") == "1"  # Set by .ci/run: there a skip is a failure.


# A shell starts what runs in its background deaf to Ctrl-C, and every process of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


os.umask(0o022)  # A file that others can write is refused in places, and some machines make all files so.


# A busy machine takes its time for an example, and that is no fault.
settings.register_profile("skylane", deadline=None)
settings.load_profile("skylane")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hold the `mosquitto` mark: skip, or fail where Mosquitto is required."""
    if item.get_closest_marker("mosquitto") is not None:
        need_mosquitto()


def need_mosquitto() -> None:
    """Skip the test where there is no Mosquitto, or fail it where one is required."""
    if find_mosquitto() is not None:
        return
    if REQUIRED:
        pytest.fail(f"{MOSQUITTO_MISSING} (SKYLANE_REQUIRE_MOSQUITTO=1)")
    pytest.skip(MOSQUITTO_MISSING)


@pytest.fixture(scope="session")
def mosquitto_url() -> Iterator[str]:
    """The URL of a real Mosquitto on a free port, shared by the tests of a run: use topics of your own."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker.url


@pytest.fixture
def mosquitto_broker() -> Iterator[Broker]:
    """A real Mosquitto for one test alone, which may stop or kill it."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The URL of the embedded broker (MQTT 3.1.1) on a free port, shared by the tests of a run."""
    with Broker.start(kind="embedded") as broker:
        yield broker.url


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """End by saying how many tests were skipped for want of Mosquitto."""
    yield
    reasons = [
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    ]
    missing = sum(MOSQUITTO_MISSING in reason for reason in reasons)
    if missing:
        terminalreporter.write_line(f"{missing} tests were skipped for want of Mosquitto: apt-get install mosquitto")
