"""Messages of the broker's protocol, in both directions: read or refused, and values read are within bounds."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from json_input import changed_json

from umstack_xdp.attachment import AttachMode
from umstack_xdp.broker_protocol import (
    MESSAGE_MAX_BYTES,
    OpenRequest,
    RuleRequest,
    decode_reply,
    decode_request,
    encode_error,
    encode_request,
)
from umstack_xdp.errors import XdpError
from umstack_xdp.xsk import RingMode, RingSettings

INSTRUMENTED = ("umstack_xdp.broker_protocol",)
_BROKER = Path("/run/umstack/broker.sock")
_MESSAGES = [
    json.loads(
        encode_request(
            OpenRequest("eth1.7", "eth1", next(iter(AttachMode)), next(iter(RingMode)), RingSettings())
        )
    ),
    json.loads(encode_request(RuleRequest(True, "239.1.2.3", 14400))),
    {"version": 1, "do": "ask"},
    {"version": 1, "do": "attached"},
    {"version": 1, "error": {"message": "no", "hint": "ask", "errno": 1}},
]


def _as_request(data: bytes) -> None:
    refusal: XdpError | None = None
    try:
        request = decode_request(data)
    except XdpError as error:
        refusal = error
    if refusal is not None:
        assert len(encode_error(refusal)) <= MESSAGE_MAX_BYTES
        return
    assert decode_request(encode_request(request)) == request
    if isinstance(request, OpenRequest):
        assert 0 < len(request.interface) <= 15
        assert request.interface.isprintable()
        assert 0 < len(request.device) <= 15
        assert request.device.isprintable()
        assert request.settings.receive_frames <= 65536
        assert request.settings.queues <= 64
    if isinstance(request, RuleRequest):
        assert 0 < request.port < 65536


def one_input(data: bytes) -> None:
    """Decode the input as a request, and as a reply."""
    message = changed_json(data, _MESSAGES)
    _as_request(message)
    with contextlib.suppress(XdpError):
        assert isinstance(decode_reply(message, _BROKER), dict)
