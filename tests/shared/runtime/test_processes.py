"""How processes end."""

import signal

import pytest

from shared.runtime.processes import interrupt_on_termination


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_is_asked_to_end_is_interrupted_once_and_ends_in_peace(number: signal.Signals) -> None:
    """A bench that `timeout` ends would leave vehicles, workers and networks behind; one that is asked twice, half of them."""
    before = signal.getsignal(number)
    ended = []

    def asked_twice() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt), interrupt_on_termination():
        asked_twice()
    assert ended
    assert signal.getsignal(number) is before
