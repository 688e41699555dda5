import signal

import pytest

from shared.runtime.processes import interrupt_on_termination


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_only_the_first_termination_signal_interrupts(number: signal.Signals) -> None:
    """A second signal must not interrupt the cleanup of processes and networks."""
    before = signal.getsignal(number)
    cleaned_up = []

    def signalled_twice() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            cleaned_up.append(True)

    with pytest.raises(KeyboardInterrupt), interrupt_on_termination():
        signalled_twice()
    assert cleaned_up
    assert signal.getsignal(number) is before
