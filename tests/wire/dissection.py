"""tshark's dissection of a capture, frame by frame, with its marks of malformed data."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scapy.packet import Packet

from tests.unit.loopback import OWN_ADDRESSES
from umstack.scapy import LBTRM

MARKS = '_ws.malformed || _ws.short || _ws.expert.group == "Malformed" || _ws.expert.group == "Undecoded"'
"""Matches nothing in a good capture. Severity is unsuitable, because NAKs are warnings."""

OPTIONS = {
    "udp.try_heuristic_first": "TRUE",
    "lbtrm.sequence_analysis": "TRUE",
    "lbmc.reassemble_fragments": "TRUE",
    "lbmc.use_heuristic_subdissectors": "FALSE",
}


def tshark(capture: Path, *arguments: str) -> str:
    """Run tshark on a capture and return its output."""
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}:{value}")]
    # The port of this process may be that of another protocol of tshark's.
    lbmr = ["-d", f"udp.port=={OWN_ADDRESSES['resolver_multicast_port']},lbmr"]
    command = ["tshark", "-2", "-r", str(capture), *options, *lbmr, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def values(tree: object, field: str) -> list[str]:
    """Return all values of a field in a dissection, in order."""
    if isinstance(tree, list):
        return [value for item in tree for value in values(item, field)]
    if not isinstance(tree, dict):
        return []
    found: list[str] = []
    for key, item in tree.items():
        if key == field:
            found += item if isinstance(item, list) else [item]
        else:
            found += values(item, field)
    return found


def number(tree: object, field: str) -> int:
    """Return the only value of a field as a number."""
    found = values(tree, field)
    assert len(found) == 1, (field, found)
    return int(found[0], 0)


def octets(tree: object, field: str) -> bytes:
    """Return the only value of a field as bytes."""
    found = values(tree, field)
    assert len(found) == 1, (field, found)
    return bytes.fromhex(found[0].replace(":", ""))


def topic_report(indexes: Iterable[int]) -> bytes:
    """Return the data of a receiver's report of all its topics, with the default longest message."""
    return b"\2\1\0\0" + b"".join(struct.pack("!II", index, 2 << 20) for index in indexes)


@dataclass(frozen=True)
class Frame:
    """The layers of a frame."""

    layers: dict[str, Any]

    @property
    def is_lbtrm(self) -> bool:
        """True if tshark dissects it as LBT-RM."""
        return "lbtrm" in self.layers

    @property
    def kind(self) -> int:
        """LBT-RM packet type: 0 DATA, 2 SM, 3 NAK, 4 NCF."""
        return number(self.layers["lbtrm"], "lbtrm.hdr.type")

    @property
    def session_id(self) -> int:
        """The LBT-RM session id."""
        return number(self.layers["lbtrm"], "lbtrm.hdr.session_id")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The LBMC messages in it, in order."""
        found = self.layers.get("lbmc", [])
        return found if isinstance(found, list) else [found]

    @property
    def destination(self) -> str:
        """The IP destination address."""
        return str(self.layers["ip"]["ip.dst"])

    @property
    def payload_bytes(self) -> int:
        """The length of the UDP payload, by the UDP header."""
        return number(self.layers["udp"], "udp.length") - 8

    @property
    def payload(self) -> bytes:
        """The UDP payload."""
        return octets(self.layers["udp"], "udp.payload")

    @property
    def read(self) -> Packet:
        """Return the LBT-RM datagram as dissected by the scapy layers."""
        return LBTRM(self.payload)


def frames(capture: Path) -> list[Frame]:
    """Return the UDP frames of a capture."""
    text = tshark(capture, "-Y", "udp && !icmp", "-T", "json", "--no-duplicate-keys")
    return [Frame(packet["_source"]["layers"]) for packet in json.loads(text)]
