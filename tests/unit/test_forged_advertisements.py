"""Forged advertisements that name a victim: what a receiver of the topic sends there is bounded."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack

import pytest

from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.unit.test_resolution_flood import send
from tests.waiting import wait_for
from umstack import Context
from umstack._engine.transport_address import LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress
from umstack.resolution.codec import Advertisement, encode_advertisement, pack

VICTIM = "127.0.0.77"
SESSIONS = 200
SECONDS = 4.0
PER_ADDRESS = 8 + 6
"""Attempts that are free, and those whose intervals double within the time of the test."""
BUDGET = 128 + 16 * (SECONDS + 2)


def _victim(stack: ExitStack, transport: str) -> socket.socket:
    """A socket that counts what arrives at the victim."""
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    found = stack.enter_context(socket.socket(socket.AF_INET, kind))
    found.bind((VICTIM, 0))
    found.setblocking(False)
    if transport == "tcp":
        found.listen(1000)
    return found


def _address(transport: str, port: int, session_id: int) -> TransportAddress:
    if transport == "tcp":
        return TcpAddress(VICTIM, session_id, port)
    if transport == "lbtru":
        return LbtruAddress(VICTIM, session_id, port)
    return LbtrmAddress(
        VICTIM, str(OWN_ADDRESSES["transport_lbtrm_multicast_address_low"]), session_id, 14400, port
    )


def _count_arrivals(victim: socket.socket, transport: str, seconds: float) -> int:
    """Return the datagrams, or connections, that arrive in this time."""
    arrived, end = 0, time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(victim, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            if transport == "tcp":
                victim.accept()[0].close()
            else:
                victim.recv(2000)
            arrived += 1
    return arrived


@pytest.mark.parametrize("transport", ["lbtrm", "lbtru", "tcp"])
def test_a_victim_gets_little_from_each_receiver(transport: str) -> None:
    """Without bounds 200 sessions make 1,000 status messages or 2,000 connection requests a second."""
    with ExitStack() as stack:
        context = stack.enter_context(open_context())
        receiver = stack.enter_context(context.receiver("forged"))
        victim = _victim(stack, transport)
        port = victim.getsockname()[1]
        records = [
            encode_advertisement(Advertisement("forged", number, 60, _address(transport, port, number)))
            for number in range(1, SESSIONS)
        ]
        send(pack([], records, 1400))
        wait_for(lambda: receiver.stats()["delivery_controllers"], "the forged sessions")
        arrived = _count_arrivals(victim, transport, SECONDS)
        assert 0 < arrived <= (BUDGET if transport == "tcp" else PER_ADDRESS)
        with context.source("forged", transport=transport, flow_control="none") as source:
            name = source.transport
            wait_for(lambda: any(name in one for one in receiver.sources), "an honest source")
            if transport != "lbtrm":
                source.wait_connected(timeout=10)
            wait_for(lambda: source.send(b"here", flush=True) or receiver.receive(timeout=0.1), "its message")


@pytest.mark.parametrize("is_replayed", [False, True], ids=["invented", "replayed first"])
def test_lies_about_a_source_do_not_delay_its_first_receiver(is_replayed: bool) -> None:
    """A liar's sessions at the source's address use up the attempts of the liar, also if it repeats the advertisement
    of the source before the receiver has received it from the source."""
    elsewhere = OWN_ADDRESSES["resolver_multicast_port"] + 1
    with ExitStack() as stack:
        publishing = stack.enter_context(open_context(resolver_multicast_port=elsewhere))
        source = publishing.source("lied about", flow_control="min")
        true_address = source._publication.session.address
        assert isinstance(true_address, LbtrmAddress)
        lies = [true_address._replace(session_id=number, nak_port=9) for number in range(1, 40)]
        honest = encode_advertisement(Advertisement("lied about", source.topic_index, 60, true_address))
        context = stack.enter_context(open_context())
        receiver = stack.enter_context(context.receiver("lied about"))
        records = [
            encode_advertisement(Advertisement("lied about", number, 60, address))
            for number, address in enumerate(lies, 1)
        ]
        send(pack([], records, 1400), "127.0.0.2")
        wait_for(lambda: len(receiver.sources) == len(lies), "the forged sessions")
        wait_for(lambda: _status_messages(context) > 8, "the liar's attempts")
        if is_replayed:
            send(pack([], [honest], 1400), "127.0.0.2")
            wait_for(lambda: len(receiver.sources) == len(lies) + 1, "the replayed advertisement")
        send(pack([], [honest], 1400))
        source.wait_connected(timeout=2.0)


def _status_messages(context: Context) -> int:
    return sum(one["status_messages_sent"] for one in context.stats()["receiver_transports"])
