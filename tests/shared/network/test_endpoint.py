import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.network.endpoint import Endpoint, EndpointError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        ("worker_1.example:1", "worker_1.example", 1),
        ("[::1]:65535", "::1", 65_535),
        ("[fe80::1%eth0]:8000", "fe80::1%eth0", 8000),
    ],
)
def test_hosts_and_ports_are_read_and_written(text: str, host: str, port: int) -> None:
    """What was read must lead there again when it is handed on as text: an IPv6 address needs its brackets."""
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port, str(endpoint)) == (host, port, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no port follows its host"),
        ("8000", "no port follows its host"),
        ("[::1]", "no port follows its host"),
        (":8000", "it has no host"),
        ("host:", "its port is no number from 1 to 65535"),
        ("host:0", "its port is no number from 1 to 65535"),
        ("host:65536", "its port is no number from 1 to 65535"),
        ("host:+80", "its port is no number"),
        ("host:٨٠", "its port is no number"),
        ("host:80\n", "its port is no number"),
        ("ho\nst:80", "its host is no name of"),
        ("ho st:80", "its host is no name of"),
        ("[host]:80", "its host is no name of"),
        ("http://host:80", "its host has a colon"),
        ("user@host:80", "its host is no name of"),
        ("::1:80", "its host has a colon, and only an IPv6 address in brackets has those"),
        ("[1::2::3]:80", "what stands in its brackets is no IPv6 address"),
        ("[::1%a\n]:80", "its host has a colon"),
    ],
)
def test_what_is_none_is_told_with_what_is_wrong_and_what_to_write(text: str, problem: str) -> None:
    """It is read off one line of a terminal, so nothing given may break that line."""
    with pytest.raises(EndpointError) as caught:
        Endpoint.parse(text)
    told = str(caught.value)
    assert told.startswith(f"{text!r}: {problem}")
    assert told.endswith(": write HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")
    assert told.isprintable()


def test_what_listens_may_take_any_free_port_and_every_address() -> None:
    """A server may, and nobody who calls one."""
    assert Endpoint.parse("[::]:0", listens=True) == Endpoint("::", 0)
    assert Endpoint.parse(":8000", listens=True) == Endpoint("", 8000)
    assert str(Endpoint.parse(":8000", listens=True)) == ":8000"
    with pytest.raises(EndpointError, match="from 0 to 65535"):
        Endpoint.parse("host:65536", listens=True)


@given(st.text(st.sampled_from("h1.:[]%@/\n 0"), max_size=12) | st.text())
@example("[" * 200 + ":1")
def test_any_text_is_an_endpoint_that_reads_back_or_told_in_short(text: str) -> None:
    """It comes from configurations, environments and command lines."""
    try:
        endpoint = Endpoint.parse(text)
    except EndpointError as error:
        assert len(str(error)) < 1500  # noqa: PT017 (either end is right)
    else:
        assert Endpoint.parse(str(endpoint)) == endpoint
        assert str(endpoint).isprintable()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.0.0.5", True), ("::1", True), ("10.0.0.7", False), ("host", False)],
)
def test_what_is_of_this_machine_is_told_without_asking_for_a_name(host: str, *, is_local: bool) -> None:
    """A token may be sent there in the clear; to a name that somebody else answers for it may not."""
    assert Endpoint(host, 80).is_local is is_local
