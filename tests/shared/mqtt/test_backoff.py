from shared.mqtt.paho_client import ExponentialBackoff


def test_waits_are_random_and_grow_to_two_seconds() -> None:
    """Nodes that lost one broker together reconnect at different times, and within two seconds of its return."""
    series = [[backoff.wait_s() for _ in range(50)] for backoff in (ExponentialBackoff() for _ in range(40))]
    assert len({tuple(waits) for waits in series}) == 40
    assert max(waits[0] for waits in series) <= 0.2
    assert max(waits[1] for waits in series) <= 0.4
    late = [wait for waits in series for wait in waits[4:]]
    assert 1.5 < max(late) <= 2.0
    assert min(late) < 0.5


def test_only_a_stable_connection_resets_the_waits() -> None:
    """Two clients with one identifier disconnect each other right after each connection, and must slow down."""
    backoff = ExponentialBackoff()
    waits = [backoff.wait_s(held_s=0.1) for _ in range(60)]
    assert max(waits[10:]) > 0.5
    assert backoff.wait_s(held_s=60.0) <= 0.2
