"""Fixtures of all tests: brokers on free ports, and the number of tests skipped because Mosquitto is missing."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ops.broker.broker import Broker
from ops.broker.mosquitto import MOSQUITTO_MISSING, find_mosquitto

REQUIRED = (
    os.environ.get("SKYLANE_REQUIRE_MOSQUITTO") == "1"
)  # Set by .ci/run: tests then fail instead of being skipped.


_LONGEST = {
    "test_images.py",
    "test_study_end_to_end.py",
    "test_smoke.py",
    "test_other_brokers.py",
    "test_ray.py",
    "test_doctor.py",
    "test_contract.py",
    "test_wheel.py",
}


# A shell's background processes ignore Ctrl-C, which every process started by a test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


os.umask(0o022)  # Some code refuses files that other users can write.


# On a busy machine an example may take any time.
settings.register_profile("skylane", deadline=None)
settings.load_profile("skylane")


@pytest.fixture(autouse=True)
def logging_configuration() -> Iterator[None]:
    """Undoes what a command that runs in the process of the tests configures for all later ones: handlers and levels."""
    loggers = [logging.getLogger(), logging.getLogger("skylane")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
        logger.handlers = [each for each in logger.handlers if not type(each).__module__.startswith("shared.")]


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restores the signal handlers that a command replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, so that all processes of `make test` end at about the same time."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Applies the `mosquitto` mark: skips the test if Mosquitto is missing, or fails it if Mosquitto is required."""
    if item.get_closest_marker("mosquitto") is not None:
        need_mosquitto()


def need_mosquitto() -> None:
    """Skips the test if Mosquitto is missing, or fails it if Mosquitto is required."""
    if find_mosquitto() is not None:
        return
    if REQUIRED:
        pytest.fail(f"{MOSQUITTO_MISSING} (SKYLANE_REQUIRE_MOSQUITTO=1)")
    pytest.skip(MOSQUITTO_MISSING)


@pytest.fixture(scope="session")
def mosquitto_url() -> Iterator[str]:
    """The URL of a Mosquitto on a free port; all tests share it, so each test must use its own topics."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker.url


@pytest.fixture
def mosquitto_broker() -> Iterator[Broker]:
    """A Mosquitto for a single test, which may stop or kill it."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The URL of the embedded broker (MQTT 3.1.1) on a free port; all tests share it."""
    with Broker.start(kind="embedded") as broker:
        yield broker.url


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Reports at the end how many tests were skipped because Mosquitto is missing."""
    yield
    reasons = [
        report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)
    ]
    missing = sum(MOSQUITTO_MISSING in reason for reason in reasons)
    if missing:
        terminalreporter.write_line(
            f"{missing} tests were skipped because Mosquitto is missing: apt-get install mosquitto"
        )
