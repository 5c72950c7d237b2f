"""Connections over TCP to addresses that other hosts name: which are made, and how others are reported."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.unit.test_resolution_flood import send
from tests.waiting import SECONDS, wait_for
from umstack import Context, Request
from umstack._engine.endpoint import Endpoint
from umstack._engine.tcp_peers import TcpPeers
from umstack._engine.transport_address import LbtrmAddress, TcpAddress, TransportAddress
from umstack.config import Config
from umstack.errors import OptionError, ResponseFailed
from umstack.recovery import endpoint_option
from umstack.resolution.codec import Advertisement, encode_advertisement, pack

ELSEWHERE = "198.51.100.1"
"""An address of no host (RFC 5737)."""
OWN = LbtrmAddress("127.0.0.1", str(OWN_ADDRESSES["transport_lbtrm_multicast_address_low"]), 7, 14400, 9)


def peers(own_address: str = "127.0.0.1", **options: str) -> TcpPeers:
    return TcpPeers(Config().context_options(**options), own_address)


def advertise(address: TransportAddress, request_port: Endpoint | None = None) -> None:
    options = () if request_port is None else (endpoint_option(request_port),)
    send(pack([], [encode_advertisement(Advertisement("named", 1, 60, address, options))], 1400))


def refused(context: Context) -> int:
    return int(context.stats()["context"]["tcp_connections_refused"])


@pytest.mark.parametrize(
    ("allowed", "ip", "advertiser", "is_admitted"),
    [
        ("domain", "127.9.9.9", ELSEWHERE, True),
        ("domain", ELSEWHERE, ELSEWHERE, True),
        ("domain", ELSEWHERE, "127.0.0.1", False),
        ("any", ELSEWHERE, "127.0.0.1", True),
        ("198.51.100.0/24, 10.0.0.1", ELSEWHERE, "127.0.0.1", True),
        ("10.0.0.1", ELSEWHERE, ELSEWHERE, False),
        ("10.0.0.1", "127.0.0.1", "127.0.0.1", False),
    ],
)
def test_the_option_chooses_the_addresses(allowed: str, ip: str, advertiser: str, is_admitted: bool) -> None:
    """tcp_connections_allowed: the resolution domain, any address, or a list."""
    chosen = peers(tcp_connections_allowed=allowed)
    assert chosen.admits_advertised(ip, advertiser, "a test") is is_admitted
    assert (
        chosen.admits_of_session(ip, f"LBTRM:{advertiser}:14390:00000007:224.1.1.1:14400[1]", "responses")
        is is_admitted
    )
    assert chosen.refused_count == 2 * (not is_admitted)


def test_the_daemons_choose_who_advertises() -> None:
    """With resolution daemons, the address that an advertisement came from is hidden: all are admitted."""
    by_daemons = peers(resolver_unicast_daemon="127.0.0.1:15380")
    assert by_daemons.admits_advertised(ELSEWHERE, "127.0.0.1", "a test")
    listed = peers(resolver_unicast_daemon="127.0.0.1:15380", tcp_connections_allowed="10.0.0.0/8")
    assert not listed.admits_advertised(ELSEWHERE, "127.0.0.1", "a test")


def test_loopback_is_no_network_of_another_interface() -> None:
    """Other hosts cannot name services of this host that listen on loopback."""
    assert not peers("198.51.100.9").admits_advertised("127.0.0.1", "198.51.100.8", "a test")


def test_a_wrong_list_is_refused() -> None:
    """The error names the option."""
    with pytest.raises(OptionError, match="tcp_connections_allowed"):
        Config().context_options(tcp_connections_allowed="10.0.0.1/8")


def test_a_source_elsewhere_is_refused_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A forged advertisement of a TCP source makes no connection, and the list admits one."""
    with ExitStack() as stack:
        context = stack.enter_context(open_context())
        admitting = stack.enter_context(open_context(tcp_connections_allowed=f"{ELSEWHERE}/32"))
        receiver, admitted = context.receiver("named"), admitting.receiver("named")
        for number in range(1, 4):
            advertise(TcpAddress(ELSEWHERE, number, 9))
        wait_for(lambda: refused(context) == 3, "the refusals")
        wait_for(lambda: len(admitted.sources) == 3, "the sessions of the list")
        assert receiver.sources == []
        assert refused(admitting) == 0
        assert caplog.text.count(f"no connection to {ELSEWHERE}") == 1


def test_a_request_port_elsewhere_is_not_asked() -> None:
    """The source is received, without its retained messages."""
    with open_context() as context:
        receiver = context.receiver("named")
        advertise(OWN, Endpoint(ELSEWHERE, 9))
        wait_for(lambda: receiver.sources, "the source")
        counters = context.stats()["context"]
        assert (counters["tcp_connections_refused"], counters["late_joins"]) == (1, 0)


def test_a_requester_elsewhere_gets_no_response() -> None:
    """respond() raises an error that names the option; nothing is sent."""
    with open_context() as context:
        receiver = context.receiver("asked")
        source = context.source("asked", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.request(b"?")
        request = next(iter(receiver))
        assert isinstance(request, Request)
        request.requester = (ELSEWHERE, 9)
        with pytest.raises(ResponseFailed, match="not allowed") as caught:
            request.respond(b"!")
        assert "tcp_connections_allowed" in str(caught.value.hint)
        assert refused(context) == 1
        with socket.socket() as listener:
            listener.bind(("127.0.0.77", 0))
            listener.listen()
            request.requester = listener.getsockname()
            request.respond(b"!")
            listener.settimeout(SECONDS)
            listener.accept()[0].close()
