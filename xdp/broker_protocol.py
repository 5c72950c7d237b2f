"""The messages between the broker and its clients (see docs/privileges.md).

A connection is a Unix socket of type SOCK_SEQPACKET; each message is one JSON object. The client sends requests; the
broker responds to each once, in order. A connection has at most one ring set, which ends with it.

    open       -> the ring's shape, with the descriptors of the frames and of each queue's socket
    add_rule   -> empty
    remove_rule
    attached   -> true if the program is on the interface
    ask        -> the broker's permissions and its loans
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from umstack_xdp.attachment import AttachMode
from umstack_xdp.errors import BrokerError
from umstack_xdp.xsk import RingMode, RingSettings

DEFAULT_PATH = "/run/umstack/xdp.sock"
PROTOCOL_VERSION = 3
MESSAGE_MAX_BYTES = 16384
DESCRIPTORS_MAX = 65
"""One socket for each of 64 queues, and the frames."""

# The transmitted integers of RingSettings and their bounds; a slow open delays all clients.
_SETTINGS_BOUNDS = {
    "receive_frames": (64, 65536),
    "send_frames": (64, 65536),
    "queues": (0, 64),
    "first_queue": (0, 63),
    "busy_poll_us": (0, 10_000),
    "busy_poll_budget": (1, 256),
}
_SETTINGS_SWITCHES = ("verify_checksum", "huge_pages", "kernel_times", "nic_times")
_POWERS_OF_TWO = ("receive_frames", "send_frames")


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Attach the program and open the rings on an interface."""

    interface: str
    """The client's network namespace, as the kernel reports it to the broker."""
    device: str
    """The NIC for the rings: the interface, or a device below it (xdp/ring_place.py)."""
    attach_mode: AttachMode
    ring_mode: RingMode
    settings: RingSettings


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """Add or remove the rule for an address and port."""

    is_added: bool
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class AttachedRequest:
    """Request whether the program is attached to the interface."""


@dataclass(frozen=True, slots=True)
class AskRequest:
    """Request the broker's permissions and loans."""


Request = OpenRequest | RuleRequest | AttachedRequest | AskRequest


def network_namespace() -> int:
    """Return the calling thread's network namespace, by inode."""
    return Path("/proc/thread-self/ns/net").stat().st_ino


def encode_request(request: Request) -> bytes:
    """Encode a request."""
    fields: dict[str, Any]
    match request:
        case OpenRequest():
            settings = asdict(request.settings)
            fields = {
                "do": "open",
                "interface": request.interface,
                "device": request.device,
                "attach_mode": request.attach_mode.value,
                "ring_mode": request.ring_mode.value,
                "settings": {name: settings[name] for name in (*_SETTINGS_BOUNDS, *_SETTINGS_SWITCHES)},
            }
        case RuleRequest():
            do = "add_rule" if request.is_added else "remove_rule"
            fields = {"do": do, "address": request.address, "port": request.port}
        case AttachedRequest():
            fields = {"do": "attached"}
        case AskRequest():
            fields = {"do": "ask"}
    return encode(fields)


def encode(fields: Mapping[str, Any]) -> bytes:
    """Write a message."""
    return json.dumps({"version": PROTOCOL_VERSION, **fields}).encode()


def decode(message: bytes) -> dict[str, Any]:
    """Decode the parts that requests and responses have in common."""
    if len(message) > MESSAGE_MAX_BYTES:
        raise _malformed(f"longer than {MESSAGE_MAX_BYTES} bytes")
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise _malformed("no JSON") from error
    if not isinstance(fields, dict):
        raise _malformed("no JSON object")
    if (version := fields.get("version")) != PROTOCOL_VERSION:
        raise BrokerError(
            f"received a message of version {version!r}, this is version {PROTOCOL_VERSION}",
            hint="run broker and application from the same version of umstack",
        )
    return fields


def decode_request(message: bytes) -> Request:
    """Decode a request; raise unless it is exactly one."""
    fields = decode(message)
    match fields.get("do"):
        case "open":
            return OpenRequest(
                interface=_text(fields, "interface", 15),
                device=_text(fields, "device", 15),
                attach_mode=AttachMode(_choice(fields, "attach_mode", tuple(AttachMode))),
                ring_mode=RingMode(_choice(fields, "ring_mode", tuple(RingMode))),
                settings=_settings(fields.get("settings")),
            )
        case "add_rule" | "remove_rule" as do:
            address, port = _text(fields, "address", 64), _number(fields, "port", 1, 65535)
            return RuleRequest(do == "add_rule", address, port)
        case "attached":
            return AttachedRequest()
        case "ask":
            return AskRequest()
    raise _malformed("it is not a known request")


def encode_error(error: Exception) -> bytes:
    """Encode a refusal: message and hint, cut to the message limit."""
    message, hint = getattr(error, "message", str(error)), getattr(error, "hint", "see the broker's log")
    cut = MESSAGE_MAX_BYTES // 32  # a character takes up to 12 bytes, and there are two texts
    number = int(getattr(error, "errno", None) or 0)
    return encode({"error": {"message": message[:cut], "hint": hint[:cut], "errno": number}})


def decode_reply(message: bytes, path: Path) -> dict[str, Any]:
    """Decode a response; raise if it is a refusal."""
    fields = decode(message)
    refusal = fields.get("error")
    if not isinstance(refusal, dict):
        return fields
    number = refusal.get("errno")
    raise BrokerError(
        f"the broker at {path}: {refusal.get('message')}",
        hint=str(refusal.get("hint")),
        errno=number if isinstance(number, int) else 0,
    )


def _settings(fields: object) -> RingSettings:
    if not isinstance(fields, dict):
        raise _malformed("it has no settings")
    numbers = {name: _number(fields, name, *bounds) for name, bounds in _SETTINGS_BOUNDS.items()}
    for name in _POWERS_OF_TWO:
        if numbers[name] & (numbers[name] - 1):
            raise _malformed(f"{name} is no power of two")
    switches = {name: bool(_number(fields, name, 0, 1)) for name in _SETTINGS_SWITCHES}
    return RingSettings(**numbers, **switches)  # type: ignore[arg-type]


def _number(fields: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or not least <= value <= most:
        raise _malformed(f"{name} is no number from {least} to {most}")
    return value


def _text(fields: Mapping[str, Any], name: str, most: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise _malformed(f"{name} is no text of 1 to {most} characters")
    return value


def _choice(fields: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = fields.get(name)
    if value not in choices:
        raise _malformed(f"{name} is none of {', '.join(choices)}")
    return str(value)


def _malformed(why: str) -> BrokerError:
    return BrokerError(f"a message that is none: {why}", hint="use a client of the same version")
