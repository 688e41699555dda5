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
def test_a_parsed_endpoint_formats_back(text: str, host: str, port: int) -> None:
    """An IPv6 address gets its brackets back."""
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port, str(endpoint)) == (host, port, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the port is missing"),
        ("8000", "the port is missing"),
        ("[::1]", "the port is missing"),
        (":8000", "the host is missing"),
        ("host:", "the port must be a number from 1 to 65535"),
        ("host:0", "the port must be a number from 1 to 65535"),
        ("host:65536", "the port must be a number from 1 to 65535"),
        ("host:+80", "the port must be a number"),
        ("host:٨٠", "the port must be a number"),
        ("host:80\n", "the port must be a number"),
        ("ho\nst:80", "the host is neither a name of"),
        ("ho st:80", "the host is neither a name of"),
        ("[host]:80", "the host is neither a name of"),
        ("http://host:80", "this is a URL"),
        ("user@host:80", "the host is neither a name of"),
        ("::1:80", "the host contains a colon: write an IPv6 address in brackets"),
        ("[1::2::3]:80", "the text in brackets is not an IPv6 address"),
        ("[::1%a\n]:80", "the host contains a colon"),
    ],
)
def test_an_invalid_endpoint_is_refused_with_its_problem_and_an_example(text: str, problem: str) -> None:
    """The message is one printable line, whatever was given."""
    with pytest.raises(EndpointError) as caught:
        Endpoint.parse(text)
    message = str(caught.value)
    assert message.startswith(f"{text!r}: {problem}")
    assert message.endswith(": write HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")
    assert message.isprintable()


def test_a_listening_endpoint_may_have_port_0_and_no_host() -> None:
    """Port 0 is any free port, and an empty host all addresses."""
    assert Endpoint.parse("[::]:0", listens=True) == Endpoint("::", 0)
    assert Endpoint.parse(":8000", listens=True) == Endpoint("", 8000)
    assert str(Endpoint.parse(":8000", listens=True)) == ":8000"
    with pytest.raises(EndpointError, match="from 0 to 65535"):
        Endpoint.parse("host:65536", listens=True)


@given(st.text(st.sampled_from("h1.:[]%@/\n 0"), max_size=12) | st.text())
@example("[" * 200 + ":1")
def test_any_text_is_parsed_or_refused_briefly(text: str) -> None:
    """The text comes from configurations, environments and command lines."""
    try:
        endpoint = Endpoint.parse(text)
    except EndpointError as error:
        assert len(str(error)) < 1500  # noqa: PT017 (both results are valid)
    else:
        assert Endpoint.parse(str(endpoint)) == endpoint
        assert str(endpoint).isprintable()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.0.0.5", True), ("::1", True), ("10.0.0.7", False), ("host", False)],
)
def test_local_hosts_are_recognised_without_resolving_names(host: str, *, is_local: bool) -> None:
    """A token may be sent in plain text to this machine, but not to a name that DNS resolves."""
    assert Endpoint(host, 80).is_local is is_local
