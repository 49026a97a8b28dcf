"""Ports that can't serve."""

import socket

import pytest

from callboard.transport.ports import BAD_PORTS, refuse_port


@pytest.mark.parametrize(("port", "service"), [(22, "ssh"), (6000, "x11"), (10080, "amanda"), (6667, "ircu"), (5060, "sip")])
def test_a_port_that_fetch_blocks_is_refused_with_the_reason(port: int, service: str) -> None:
    complaint = refuse_port("127.0.0.1", port)
    assert complaint is not None
    assert service in complaint
    assert "browsers" in complaint


def test_the_list_is_that_of_the_standard() -> None:
    # fetch.spec.whatwg.org, "port blocking": 83 ports, of which 0 has a meaning of its own for a server.
    assert len(BAD_PORTS) == 82
    assert min(BAD_PORTS) == 1
    assert max(BAD_PORTS) == 10080
    assert not {80, 443, 3000, 8000, 8080} & BAD_PORTS.keys()


def test_a_taken_port_is_refused_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "is in use" in (refuse_port("127.0.0.1", port) or "")
    assert refuse_port("127.0.0.1", port) is None
    assert refuse_port("127.0.0.1", 0) is None


@pytest.mark.parametrize("host", ["192.0.2.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    assert "no address of this machine" in (refuse_port(host, 8123) or "")
