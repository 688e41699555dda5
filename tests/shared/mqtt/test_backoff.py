from shared.mqtt.backoff import ExponentialBackoff


def test_waits_are_drawn_and_grow_to_two_seconds() -> None:
    """Nodes that lost one broker together must not return together, nor keep a broker that comes back waiting."""
    series = [[wait.wait_s() for _ in range(50)] for wait in (ExponentialBackoff() for _ in range(40))]
    assert len({tuple(waits) for waits in series}) == 40
    assert max(waits[0] for waits in series) <= 0.2
    assert max(waits[1] for waits in series) <= 0.4
    late = [wait for waits in series for wait in waits[4:]]
    assert 1.5 < max(late) <= 2.0
    assert min(late) < 0.5


def test_a_connection_that_held_begins_anew_and_one_that_broke_at_once_does_not() -> None:
    """Two clients of one id throw each other out: each is accepted every time, and must slow down all the same."""
    wait = ExponentialBackoff()
    thrown_out = [wait.wait_s(held_s=0.1) for _ in range(60)]
    assert max(thrown_out[10:]) > 0.5
    assert wait.wait_s(held_s=60.0) <= 0.2
