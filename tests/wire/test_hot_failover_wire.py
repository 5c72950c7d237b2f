"""Hot failover's sequence numbers as tshark reads them: an application header chain (option 7) with an element 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, collect
from tests.wire.dissection import MARKS, tshark, values

HIGH = 0x0123456789ABCDEF
OPTIONAL, RESET = 0x4000, 0x2000
LONG = bytes(4000)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sent datagrams of a context, by its tap."""
    file = tmp_path_factory.mktemp("hot-failover") / "tap.pcapng"
    with open_context() as subscriber, open_context(tap=file) as publisher:
        receiver = subscriber.receiver("numbers")
        source = publisher.source("numbers", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send_hot_failover(b"of 32 bits", 0xFFFFFFF0, flush=True, bits=32)
        source.send_hot_failover(b"of 64 bits", HIGH, flush=True)
        source.send_hot_failover(b"optional", HIGH + 1, flush=True, optional=True)
        source.send_hot_failover_reset(7)
        source.send_hot_failover(LONG, 7, flush=True)
        collect(receiver, 5)
    return file


def test_nothing_is_malformed(capture: Path) -> None:
    """W1: a capture of hot failover opens cleanly."""
    assert tshark(capture, "-d", "udp.port==14400,lbtrm", "-Y", MARKS) == ""


def test_the_number_has_its_element(capture: Path) -> None:
    """The chain is lbmc.apphdr_chain with "Hot failover sequence number", 4 or 8 bytes, and has the flags in
    UM's reserved bytes.
    """
    fields = ["first_chain_hdr", "element.next_hdr", "element.hdr_len", "element.res", "hdr_len"]
    columns = [word for field in fields for word in ("-e", f"lbmc.apphdr_chain.{field}")]
    said = tshark(
        capture,
        "-d",
        "udp.port==14400,lbtrm",
        "-Y",
        "lbmc.apphdr_chain",
        "-T",
        "fields",
        *columns,
        "-e",
        "lbmc.frag.offset",
    )
    rows = [line.split("\t") for line in said.splitlines()]
    whole = [[int(cell, 0) for cell in row[:5]] for row in rows if not row[5]]
    assert whole == [
        [2, 255, 8, 0, 12],
        [2, 255, 12, 0, 16],
        [2, 255, 12, OPTIONAL, 16],
        [2, 255, 12, RESET, 16],
    ]
    fragments = [row for row in rows if row[5]]
    assert len(fragments) == 3
    assert all([int(cell, 0) for cell in row[:5]] == [2, 255, 12, 0, 16] for row in fragments)
    assert [int(row[5]) for row in fragments] == sorted(int(row[5]) for row in fragments)


def test_the_number_is_in_network_order(capture: Path) -> None:
    """The data of the element, which the dissector shows as bytes."""
    raw = tshark(capture, "-d", "udp.port==14400,lbtrm", "-Y", "lbmc.apphdr_chain", "-T", "jsonraw")
    data = [values(packet, "lbmc.apphdr_chain.element.data_raw")[0] for packet in json.loads(raw)]
    assert data[:4] == ["fffffff0", f"{HIGH:016x}", f"{HIGH + 1:016x}", f"{7:016x}"]
