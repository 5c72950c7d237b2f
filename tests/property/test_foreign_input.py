"""Input from other processes and hosts is decoded or rejected, and never ends the reader."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from umstack.config import Config
from umstack.errors import UmError
from umstack.resolution.codec import decode as decode_resolution
from umstack_xdp.broker_protocol import AskRequest, OpenRequest, decode_reply, decode_request, encode_request
from umstack_xdp.errors import XdpError
from umstack_xdp.xsk import RingSettings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
WORDS = st.sampled_from(
    ["open", "add_rule", "remove_rule", "attached", "ask", "eth0", "native", "copy", "239.1.2.3"]
)
REQUESTS = st.fixed_dictionaries(
    {"version": st.just(2), "do": WORDS | JSON},
    optional={
        "interface": WORDS | JSON,
        "address": WORDS | JSON,
        "port": st.integers(-1, 70000) | JSON,
        "attach_mode": WORDS | JSON,
        "ring_mode": WORDS | JSON,
        "settings": st.dictionaries(st.sampled_from(list(RingSettings.__slots__)), JSON) | JSON,
    },
)


@given(st.binary(max_size=600) | REQUESTS.map(lambda one: json.dumps(one).encode()))
def test_a_request_to_the_broker_is_decoded_or_rejected(message: bytes) -> None:
    """Decoded input is a request that encodes to the same bytes; other input is an XdpError."""
    try:
        request = decode_request(message)
    except XdpError:
        return
    assert decode_request(encode_request(request)) == request
    if isinstance(request, OpenRequest):
        assert request.settings.receive_frames <= 65536
        assert request.settings.queues <= 64
    if isinstance(request, AskRequest):
        assert encode_request(request) == b'{"version": 3, "do": "ask"}'


REFUSALS = st.fixed_dictionaries(
    {"version": st.just(1)},
    optional={"error": st.dictionaries(st.sampled_from(["message", "hint", "errno"]), JSON) | JSON},
)


@given(st.binary(max_size=600) | REFUSALS.map(lambda one: json.dumps(one).encode()))
def test_a_reply_of_the_broker_is_decoded_or_an_error(message: bytes) -> None:
    """A refusal with any content is an XdpError."""
    with contextlib.suppress(XdpError):
        assert isinstance(decode_reply(message, Path("/run/broker")), dict)


@given(st.binary(max_size=600))
def test_a_resolution_datagram_is_decoded_or_dropped(data: bytes) -> None:
    """Decoding any bytes raises no exception."""
    decode_resolution(data)


LINES = st.lists(
    st.sampled_from(["context", "source", "receiver", "#", '"', "=", "link", "0", "-1", "1e99", "nan"])
    | st.text(max_size=12),
    max_size=12,
)


@given(st.text(max_size=200) | LINES.map(" ".join))
def test_a_configuration_is_read_or_rejected(text: str) -> None:
    """An error is an UmError with its position."""
    with contextlib.suppress(UmError):
        Config.parse(text)
