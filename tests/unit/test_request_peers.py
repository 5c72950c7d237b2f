"""Peers at the request port that send garbage, send byte by byte, stay idle, or connect in thousands."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from tests.unit.loopback import PORTS, open_context
from tests.unit.requesting import STREAM, counter, echo, pair, port_of, whole
from tests.waiting import SECONDS, wait_for
from umstack import (
    Context,
    Message,
    ResponseTimeout,
)
from umstack.requests.codec import (
    encode_fragment_head,
)

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context(**PORTS) as opened:
        yield opened


# Peers at the request port that misbehave


def test_a_responder_that_sends_garbage(context: Context) -> None:
    """The connection ends and is counted, data before the garbage is accepted in order, and the port stays
    open.
    """
    source, _ = pair(context, "garbage")
    pending = source.request(b"x", timeout=SECONDS)
    good = whole(pending.index, b"good")
    fragment = encode_fragment_head(pending.index, 5, STREAM, 5, 5, 0, 10, 20) + bytes(10)
    wrong_offset = encode_fragment_head(pending.index, 6, STREAM, 5, 5, 11, 9, 20) + bytes(9)
    beyond = encode_fragment_head(pending.index, 6, STREAM, 6, 6, 0, 30, 20) + bytes(30)
    bad = [
        b"\x00" * 100,  # shorter than its header
        good[:2] + b"\x00\x0b" + good[4:],
        b"\x00\x04" + good[2:12] + b"\x00\x03" + good[14:],  # an option shorter than one
        b"\x00\x04" + good[2:12] + b"\x00\xff" + good[14:],  # an option longer than the message
        good[:20] + b"\x12\x34" + good[22:],  # a request
        good[:1] + b"\x4b" + (len(good) - 16).to_bytes(2, "big") + good[4:12] + good[28:],  # no such request
        good[:1] + b"\x07" + good[2:14] + b"\x00" + good[15:],  # an unknown mandatory option
        fragment + wrong_offset,
        beyond,
        good + b"\x08" + bytes(30),
    ]
    for data in bad:
        with socket.create_connection(("127.0.0.1", port_of(context))) as peer:
            peer.settimeout(SECONDS)
            peer.sendall(data)
            while peer.recv(1000):
                pass
    wait_for(lambda: counter(context, "responses_malformed") == len(bad), "all refused")
    assert counter(context, "responses_incomplete") == 1
    got = [response.data for response in itertools.islice(pending, 2)]
    assert sorted(got) == [b"good", b"re:x"]


def test_random_bytes_never_stop_the_port(context: Context) -> None:
    """Mutated responses arrive in pieces of any size."""
    source, _ = pair(context, "fuzz")
    seed = int(os.environ.get("UM_SEED", time.time_ns() % 2**32))
    print(f"UM_SEED={seed}")
    rng = random.Random(seed)
    pending = source.request(b"x", timeout=SECONDS)
    for _ in range(60):
        data = bytearray()
        for n in range(rng.randrange(1, 5)):
            data += whole(pending.index, rng.randbytes(rng.randrange(200)), n)
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", port_of(context))) as peer:
            while data:
                size = rng.randrange(1, 100)
                try:
                    peer.sendall(data[:size])
                except OSError:
                    break
                del data[:size]
    pending.close()
    assert source.request(b"still").first(timeout=SECONDS).data == b"re:still"
    intake = context._requests._intake
    assert intake is not None
    del pending
    gc.collect()
    wait_for(lambda: intake._held_bytes - sum(intake._abandoned) == 0, "released memory")


def test_a_repeated_response_is_delivered_once(context: Context) -> None:
    """The stream numbers its responses, and a repeated number is dropped; without a stream all responses
    count.
    """
    source = context.source("twice")
    pending = source.request(b"x", timeout=SECONDS)
    with socket.create_connection(("127.0.0.1", port_of(context))) as peer:
        for sqn in (2**32 - 1, 0, 0, 2**32 - 1, 1):
            peer.sendall(whole(pending.index, b"%d" % sqn, sqn))
        bare = bytearray(whole(pending.index, b"bare", 9))
        bare[12] = 0
        del bare[28:48]
        bare[2:4] = len(bare).to_bytes(2, "big")
        peer.sendall(bytes(bare) * 2)
        got = [response.data for response in itertools.islice(pending, 5)]
    assert got == [b"4294967295", b"0", b"1", b"bare", b"bare"]
    assert counter(context, "uim_dup_msgs_rcved") == 2
    assert counter(context, "uim_msgs_no_stream_rcved") == 2


def test_a_slow_peer_is_served_and_an_idle_one_disconnected() -> None:
    """A peer that sends one byte at a time is served; a peer that sends nothing, or no whole message, is idle
    and is closed.
    """
    with open_context(**PORTS, recovery_idle_timeout=200) as context:
        source, _ = pair(context, "slow")
        pending = source.request(b"x", timeout=SECONDS)
        address = ("127.0.0.1", port_of(context))
        silent = socket.create_connection(address)
        halfway = socket.create_connection(address)
        halfway.sendall(whole(pending.index, b"never whole")[:-1])
        with socket.create_connection(address) as peer:
            for byte in whole(pending.index, b"slow"):
                peer.sendall(bytes([byte]))
            got = {response.data for response in itertools.islice(pending, 2)}
        assert got == {b"re:x", b"slow"}
        for one in (silent, halfway):
            one.settimeout(SECONDS)
            assert one.recv(1) == b""
            one.close()


def test_ten_thousand_connections_do_not_block_a_responder() -> None:
    """Peers that connect and send nothing, or respond to no request, are closed for a responder."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    peers: list[socket.socket] = []
    try:
        with open_context(**PORTS, recovery_connections_maximum=8, request_responders_maximum=8) as context:
            source, _ = pair(context, "crowd")
            port = context._streams.port().endpoint
            with source.request(b"opens the port"):
                pass
            junk = whole(1, b"late")
            for n in range(10_000):
                peer = socket.socket()
                peer.setblocking(False)
                peer.connect_ex(port)
                if n % 2:
                    with contextlib.suppress(OSError):
                        peer.send(junk)
                peers.append(peer)
                if len(peers) > 1000:
                    peers.pop(0).close()

            def was_refused() -> bool:
                stats = context.stats()["context"]
                assert stats["recovery_connections"] <= 8
                assert stats["request_responders"] <= 8
                return bool(stats["recovery_connections_refused"] + stats["recovery_connections_idle"] > 100)

            wait_for(was_refused, "refused connections")

            def has_response() -> bool:
                try:
                    return source.request(b"x").first(timeout=0.5).data == b"re:x"
                except ResponseTimeout:
                    return False

            wait_for(has_response, "a response")
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_request_port_is_shared_with_late_join(context: Context) -> None:
    """UM-138: there is one port and one limit; the first bytes of each peer decide its service."""
    source = context.source("both", late_join=1, retransmit_retention_size_threshold=1_000_000)
    source.send_many([b"%d" % n for n in range(10)], flush=True)
    with open_context(**PORTS) as other:
        late: list[bytes] = []
        receiver = other.receiver(
            "both", lambda m: (late.append(m.data), echo(m)) if isinstance(m, Message) else 0
        )
        wait_for(lambda: len(late) == 10, "the past")
        assert source.request(b"now").first(timeout=SECONDS).data == b"re:now"
        assert counter(other, "late_joins") == 1
        assert counter(context, "recovery_malformed") == counter(context, "responses_malformed") == 0
        assert not receiver.closed
