"""Mirrors and captures of several interfaces show a packet more than once: the facts count it once, in every table.

The mirror is in the test: each packet of a capture is followed by copies, some with another TTL and tag, as a router or
another switch port has them. The tables must be those of the capture without the copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl

from tests.unit.capture_bytes import (
    RECEIVER,
    SOURCE,
    START_NS,
    Packet,
    block,
    data,
    enhanced,
    ethernet,
    frame,
    interface,
    ipv4,
    message,
    nak,
    ncf,
    option,
    pcap,
    pieces,
    section,
    sm,
    stalled_session,
    status,
    udp,
)
from tests.unit.unicast_bytes import lbtru_filtered, lbtru_session, lbttcp_session
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import decode, split
from umstack.facts.facts import Counter, Facts, facts_of, facts_of_packets
from umstack.facts.kinds import COPY
from umstack.report import make_report

US, MS = 1_000, 1_000_000
AGAIN = 0xA0
SEED = random.SystemRandom().randrange(2**32)
TTL_AT = 14 + 8


def fragmented_session() -> list[Packet]:
    """Datagrams in three fragments each."""
    packets: list[Packet] = []
    for sqn in range(200):
        body = udp(data(sqn, message(1, sqn, bytes(3000))))
        for at, piece in enumerate(pieces(body, 1480, ident=sqn + 1)):
            packets.append(Packet(START_NS + sqn * MS + at * 5 * US, piece))
    return packets


CAPTURES: dict[str, Callable[[], Iterable[Packet]]] = {
    "LBT-RM": stalled_session,
    "LBT-RU": lbtru_session,
    "LBT-RU with a filter": lbtru_filtered,
    "LBT-TCP": lbttcp_session,
    "fragments": fragmented_session,
}


def elsewhere(packet: bytes) -> bytes:
    """The same packet at another port: routed, and with a VLAN tag."""
    routed = bytearray(packet)
    routed[TTL_AT] -= 1
    return ethernet(bytes(routed[14:]), tags=[20])


def mirrored(packets: Iterable[Packet], ports: int, *, changed: bool) -> list[Packet]:
    """Each packet as often as ports, within 30 microseconds."""
    chance = random.Random(SEED)
    shown = []
    for packet in packets:
        shown.append(packet)
        for _ in range(1, ports):
            content = elsewhere(packet.data) if changed else packet.data
            shown.append(replace(packet, time_ns=packet.time_ns + chance.randrange(30 * US), data=content))
    return sorted(shown, key=lambda packet: packet.time_ns)


def without_copies(tables: Tables) -> Tables:
    """The tables without the remark that counts copies."""
    return tables | {"remarks": tables["remarks"].filter(pl.col("kind") != COPY)}


def copies_in(facts: Facts) -> int:
    """The packets that count as copies."""
    return int(facts.remarks.filter(pl.col("kind") == COPY)["packets"].sum())


def assert_equal(found: Tables, expected: Tables) -> None:
    """All tables have the same rows, except the times and lengths that belong to the packets themselves."""
    for name, table in without_copies(found).items():
        assert table.equals(expected[name]), name


@pytest.mark.parametrize(("ports", "changed"), [(2, False), (2, True), (4, False)])
@pytest.mark.parametrize("name", [*CAPTURES])
def test_a_mirror_changes_no_table(tmp_path: Path, name: str, ports: int, changed: bool) -> None:
    """Read whole, in splits, as rows and by windows: each time the tables are those without the mirror."""
    print("seed", SEED)
    path = tmp_path / "switch.pcap"
    packets = sorted(CAPTURES[name](), key=lambda packet: packet.time_ns)
    path.write_bytes(pcap(packets))
    expected = tables_of(facts_of([str(path)]))
    shown = mirrored(packets, ports, changed=changed)
    path.write_bytes(pcap(shown))
    whole = facts_of([str(path)])
    assert copies_in(whole) == len(shown) - len(packets)
    assert_equal(tables_of(whole), expected)
    size = path.stat().st_size
    parts = split(path, random.Random(SEED).randrange(size // 8, size))
    in_parts = Facts.merged(facts_of([part]) for part in reversed(parts))
    assert in_parts.equals(whole)
    by_rows = facts_of_packets(decode(path, only_ours=True))
    assert by_rows.equals(whole)
    counter = Counter(10 * MS)
    for batch in decode(path, only_ours=True, tally=counter.tally):
        counter.take(batch)
    assert Facts.merged(counter.facts().values()).equals(whole)


def timed(*frames: bytes, step_ns: int) -> list[Packet]:
    return [Packet(START_NS + at * step_ns, one) for at, one in enumerate(frames)]


def of_receiver(datagram: bytes) -> bytes:
    return ethernet(ipv4(udp(datagram, 14400, 14390), RECEIVER, SOURCE))


def test_what_the_protocols_send_twice_is_no_copy(tmp_path: Path) -> None:
    """A retransmission or NAK after the same one counts, however soon; so do two answers within microseconds."""
    sent = [frame(data(sqn, message(1, sqn, bytes(50)))) for sqn in range(50)]
    again = frame(data(7, message(1, 7, bytes(50)), flags=AGAIN))
    path = tmp_path / "switch.pcap"
    path.write_bytes(pcap(timed(*sent, of_receiver(nak(7)), again, again, of_receiver(nak(7)), step_ns=MS)))
    facts = facts_of([str(path)])
    assert copies_in(facts) == 0
    assert tables_of(facts)["repairs"].select("retransmissions", "repeated", "naks").row(0) == (2, 1, 2)
    path.write_bytes(
        pcap(timed(*sent, of_receiver(nak(7)), again, again, of_receiver(nak(7)), step_ns=10 * US))
    )
    facts = facts_of([str(path)])
    assert copies_in(facts) == 0, "a repair that is known to be lost is requested again at once"
    assert tables_of(facts)["repairs"].select("retransmissions", "naks").row(0) == (2, 2)
    answers = [of_receiver(status(9)), frame(ncf(1, 0, 7))]
    path.write_bytes(pcap(timed(*sent, *answers, *answers, step_ns=10 * US)))
    facts = facts_of([str(path)])
    assert copies_in(facts) == 0
    assert tables_of(facts)["sessions"].select("status_messages", "ncfs").row(0) == (2, 2)
    many = [of_receiver(status(at)) for at in range(60) for _ in range(2)]
    path.write_bytes(pcap(timed(*sent[:20], *many, step_ns=10 * US)))
    assert copies_in(facts_of([str(path)])) == 0, "a mirror shows the data twice, too"


@pytest.mark.parametrize(("apart_ns", "copies"), [(0, 1), (99 * US, 1), (101 * US, 0)])
def test_copies_are_within_a_hundred_microseconds(tmp_path: Path, apart_ns: int, copies: int) -> None:
    """A datagram seen again later is a duplicate."""
    path = tmp_path / "switch.pcap"
    path.write_bytes(pcap(timed(*[frame(data(1, message(1, 1, bytes(50))))] * 2, step_ns=apart_ns)))
    facts = facts_of([str(path)])
    assert copies_in(facts) == copies
    assert [row["copies"] for row in tables_of(facts)["duplicates"].to_dicts()] == [1] * (1 - copies)


@pytest.mark.parametrize(("between", "copies"), [(0, 10), (127, 10), (128, 0)])
def test_copies_are_among_128_packets(tmp_path: Path, between: int, copies: int) -> None:
    """A copy is found however many packets came before, and not behind as many others as are compared."""
    sqns: list[int] = []
    for at in range(10):
        others = range(1000 * at + 1, 1000 * at + 1 + between)
        sqns += [1000 * at, *others, 1000 * at, *range(1000 * at + 500, 1000 * at + 800)]
    path = tmp_path / "switch.pcap"
    path.write_bytes(
        pcap(timed(*[frame(data(sqn, message(1, sqn, bytes(50)))) for sqn in sqns], step_ns=500))
    )
    assert copies_in(facts_of([str(path)])) == copies


def test_two_points_are_no_mirror(tmp_path: Path) -> None:
    """A datagram at two interfaces of a capture is at two points; only a copy at the same one is a copy."""
    blocks = [section(), *(interface("<", 1, 0, block_name(name)) for name in ("a", "b"))]
    for sqn in range(20):
        one = frame(data(sqn, message(1, sqn, bytes(50))))
        blocks += [enhanced(Packet(START_NS + sqn * MS, one, interface=at)) for at in (0, 1, 1)]
    path = tmp_path / "host.pcapng"
    path.write_bytes(b"".join(blocks))
    facts = facts_of([str(path)])
    assert facts.remarks.select("point", "kind", "packets").rows() == [(f"{tmp_path}/host:b", COPY, 20)]
    assert tables_of(facts)["sessions"]["datagrams"].to_list() == [20, 20]


def block_name(name: str) -> bytes:
    return option("<", 2, name.encode())


def test_the_rows_of_a_capture_show_every_packet(tmp_path: Path) -> None:
    """`decode` has a row for each packet as captured; the column names the copies. Timeless ones are none."""
    one, other = frame(data(1, message(1, 1, bytes(50)))), frame(sm(1, 1, 0))
    path = tmp_path / "switch.pcap"
    path.write_bytes(pcap(timed(one, one, other, one, other, step_ns=5 * US)))
    rows = [row for batch in decode(path) for row in batch.to_pylist()]
    assert [row["copy"] for row in rows] == [False, True, False, True, True]
    timeless = tmp_path / "timeless.pcapng"
    simple = block("<", 3, len(one).to_bytes(4, "little") + one)
    timeless.write_bytes(b"".join([section(), interface(), simple, simple]))
    assert [row["copy"] for batch in decode(timeless) for row in batch.to_pylist()] == [False, False]


def test_the_report_names_the_copies(tmp_path: Path) -> None:
    """One note with the number, and no finding of duplicates or useless repairs."""
    path = tmp_path / "switch.pcap"
    packets = stalled_session()
    path.write_bytes(pcap(mirrored(packets, 2, changed=False)))
    report = make_report([str(path)], tmp_path / "out")
    [text] = [one.text for one in report.findings if one.topic == "copies"]
    assert text.startswith(f"{len(packets):,} packets of switch are copies, captured within 100 us")
    assert not {"duplicates", "useless-repairs"} & {one.topic for one in report.findings}
