"""Reads a capture with the scapy layers and with tshark, and compares them frame by frame and field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scapy.packet import Packet
from scapy.utils import rdpcap

import umstack.scapy as um
from tests.wire.dissection import tshark
from tests.wire.layer_fields import differences

CARRIED = "lbtrm || lbmc || lbmr || lbtru"
LAYERS = (um.LBTRM, um.LBTRU, um.LBMR, um.LBMCStream)


def top(packet: Packet) -> Packet | None:
    """Return the stack's outermost layer of a frame."""
    return next((packet[layer] for layer in LAYERS if layer in packet), None)


def trees(capture: Path) -> dict[int, Any]:
    """Return tshark's dissections of the stack's frames by number."""
    text = tshark(capture, "-Y", CARRIED, "-T", "json", "--no-duplicate-keys")
    found = [packet["_source"]["layers"] for packet in json.loads(text)]
    return {int(tree["frame"]["frame.number"]): tree for tree in found}


def assert_agreement(capture: Path) -> list[Packet]:
    """Assert that both read all frames of the stack alike. Return their layers."""
    shown = trees(capture)
    read = {number: top(packet) for number, packet in enumerate(rdpcap(str(capture)), 1)}
    ours = {number: layer for number, layer in read.items() if layer is not None}
    assert ours.keys() == shown.keys()
    wrong = {number: found for number in ours if (found := differences(ours[number], shown[number]))}
    assert not wrong, "\n".join(f"{number} {text}" for number, found in wrong.items() for text in found[:9])
    return list(ours.values())
