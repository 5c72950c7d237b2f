"""Message properties as tshark reads them: the element of the chain, and every field of the block after the
data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import rdpcap

import umstack.scapy as um
from tests.unit.loopback import open_context
from tests.waiting import SECONDS, collect
from tests.wire.dissection import MARKS, tshark, values
from umstack import Byte, Float, Long, Short

LBTRM = ("-d", "udp.port==14400,lbtrm")
ALL: dict[str, Any] = {
    "switch": True,
    "byte": Byte(-3),
    "short": Short(-300),
    "int": -70_000,
    "long": Long(-5),
    "float": Float(1.5),
    "double": -2.25,
    "text": "of words",
}
SHOWN = {
    "boolean_value": "1",
    "byte_value": str(2**8 - 3),
    "short_value": str(2**16 - 300),
    "int_value": str(2**32 - 70_000),
    "long_value": str(2**64 - 5),
    "float_value": "1.5",
    "double_value": "-2.25",
    "string_value": "of words",
}
"""By tshark, which reads integers as unsigned."""
BLOCK = "lbmc.lbm_msg_properties"
LONG = bytes(4000)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sent datagrams of a context, by its tap."""
    file = tmp_path_factory.mktemp("properties") / "tap.pcapng"
    with open_context() as subscriber, open_context(tap=file) as publisher:
        receiver = subscriber.receiver("properties")
        source = publisher.source("properties", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        # Each message has a datagram of its own only if the one before it was sent: another thread may be flushing.
        source.send(b"whole", flush=True, properties=ALL)
        collect(receiver, 1)
        source.send(b"plain", flush=True)
        collect(receiver, 1)
        source.send_hot_failover(b"numbered", 9, flush=True, properties={"a": 1})
        collect(receiver, 1)
        with source.request(b"asked", properties={"a": 2}):
            collect(receiver, 1)
            source.send(b"", flush=True, properties={"a": 3})
            collect(receiver, 1)
            source.send(LONG, flush=True, properties=ALL)
            collect(receiver, 1)
    return file


@pytest.fixture(scope="module")
def packets(capture: Path) -> list[Any]:
    """tshark's dissections of the frames with a chain, in order."""
    text = tshark(capture, *LBTRM, "-Y", "lbmc.apphdr_chain", "-T", "json", "--no-duplicate-keys")
    return [packet["_source"]["layers"] for packet in json.loads(text)]


def test_nothing_is_malformed(capture: Path) -> None:
    """W1: a capture with properties opens cleanly."""
    assert tshark(capture, *LBTRM, "-Y", MARKS) == ""


def test_every_field_of_a_block_is_read(packets: list[Any]) -> None:
    """W1: tshark shows magic, counts, offsets, types, names and values of all eight types."""
    whole = packets[0]

    def of(name: str) -> list[str]:
        return values(whole, f"{BLOCK}.{name}")

    assert of("data.magic") == ["0xabacdaba"]
    assert [int(of(f"data.{name}")[0], 0) for name in ("num_fields", "version", "type", "res")] == [
        8,
        0,
        0,
        0,
    ]
    assert of("hdr.key") == list(ALL)
    assert [int(kind) for kind in of("hdr.type")] == list(range(1, 9))
    assert {int(said, 0) for said in of("hdr.hash")} == {0}
    assert {name: of(f"hdr.{name}") for name in SHOWN} == {name: [value] for name, value in SHOWN.items()}
    sizes = [1, 1, 2, 4, 8, 4, 8, len("of words") + 1]
    names, at = [], 8 + 16 * len(ALL)
    for name, size in zip(ALL, sizes, strict=True):
        names += [(at, at + len(name) + 1)]
        at += len(name) + 1 + size
    offsets = zip(map(int, of("hdr.key_offset")), map(int, of("hdr.value_offset")), strict=True)
    assert list(offsets) == names
    assert values(whole, "lbmc.apphdr_chain.msgprop.proplen") == [str(at)]
    assert values(whole, "lbmc.apphdr_chain.first_chain_hdr") == ["0x06"]
    element = {
        name: values(whole, f"lbmc.apphdr_chain.msgprop.{name}") for name in ("next_hdr", "hdr_len", "res")
    }
    assert [int(element[name][0], 0) for name in ("next_hdr", "hdr_len", "res")] == [255, 8, 0]


def test_properties_combine_with_numbers_and_requests(packets: list[Any]) -> None:
    """W1: two elements of one chain, a chain after a request, and a message without data are decoded."""
    numbered, asked, empty = packets[1:4]
    assert values(numbered, "lbmc.apphdr_chain.first_chain_hdr") == ["0x06"]
    assert values(numbered, "lbmc.apphdr_chain.msgprop.next_hdr") == ["2"]
    assert values(numbered, "lbmc.apphdr_chain.element.next_hdr") == ["255"]
    assert values(asked, "lbmc.tcp_request.next_hdr") == ["7"]
    for number, packet in enumerate((numbered, asked, empty), 1):
        assert values(packet, f"{BLOCK}.hdr.int_value") == [str(number)]
    assert int(values(empty, "lbmc.apphdr_chain.msgprop.proplen")[0]) == 8 + 16 + 2 + 4


def test_reassembly_includes_the_block(packets: list[Any]) -> None:
    """W1: the element is in every fragment, and the block is at the end of the message, where tshark reads
    it.
    """
    fragments = packets[4:]
    assert len(fragments) == 3
    lengths = {values(packet, "lbmc.apphdr_chain.msgprop.proplen")[0] for packet in fragments}
    assert len(lengths) == 1
    totals = {int(values(packet, "lbmc.frag.len")[0]) for packet in fragments}
    assert totals == {len(LONG) + int(lengths.pop())}
    assert [values(packet, f"{BLOCK}.hdr.key") for packet in fragments] == [[], [], list(ALL)]


def test_the_scapy_layers_read_the_same(capture: Path) -> None:
    """W1: the layers return the mapping that was sent."""
    um.load()
    try:
        found = [frame[um.LBMCProperties] for frame in rdpcap(str(capture)) if um.LBMCProperties in frame]
    finally:
        um.unload()
    assert [dict(block.properties()) for block in found] == [ALL, {"a": 1}, {"a": 2}, {"a": 3}]
