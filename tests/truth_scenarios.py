"""Captures of networks whose truth is known from the script that made them, not from a decoder.

Each scenario is a network with one source: a script sends datagrams, lets receivers lose some, and answers their NAKs.
Points of capture write what passes them, each with a clock, a mirror, an encapsulation and files of its own. The truth
is what the script did. Sources have different addresses, so that all scenarios can be in one report.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tests.unit.capture_bytes import (
    NAK_PORT,
    SESSION,
    Packet,
    data,
    enhanced,
    ethernet,
    interface,
    ipv4,
    message,
    nak,
    ncf,
    pcap,
    section,
    sm,
    udp,
)
from umstack.analysis.tables import Tables
from umstack.facts.kinds import COPY

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
START_NS = 1_700_000_000 * SECOND
FIRST, COUNT = 1_000, 80
LOST = (1_020, 1_021, 1_040)
"""The numbers that the first receiver loses if a scenario does not say otherwise."""
AGAIN = 0xA0
RECEIVER_PORT = 14400
UP_NS, REPAIR_NS = 100 * US, 400 * US
"""From a receiver to the source; from the source's NAK to its retransmission."""
TTL_AT = 8

Clock = Callable[[int], int]
Frames = Callable[[bytes], list[bytes]]
"""The frames at a point, for an IPv4 packet."""


def exact(time_ns: int) -> int:
    """The clock of most points."""
    return time_ns


def plain(packet: bytes) -> list[bytes]:
    """An Ethernet frame."""
    return [ethernet(packet)]


@dataclass(slots=True)
class Point:
    """A point of capture: its file, its distance from the source, and how it shows packets."""

    file: str
    clock: Clock = exact
    delay_ns: int = 10 * US
    shows: Frames = plain
    is_at_receiver: bool = False
    """Datagrams that the first receiver loses do not pass here."""
    packets: list[Packet] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The point in the tables, unless another file has this name."""
        return self.file.removesuffix(".pcap").removesuffix(".pcapng")

    def see(self, time_ns: int, packet: bytes, *, is_up: bool = False) -> None:
        """Capture a packet that leaves the source, or reaches it, at a time."""
        passed_ns = time_ns - self.delay_ns if is_up else time_ns + self.delay_ns
        for at, frame in enumerate(self.shows(packet)):
            self.packets.append(Packet(self.clock(passed_ns) + at * 3 * US, frame))


@dataclass(slots=True)
class Scenario:
    """A network and the truth of it."""

    number: int
    name: str
    points: list[Point]
    nak_port: int = NAK_PORT
    """Of the process that sends now: processes of one host have one session id."""
    own_group: int = 1
    counts: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    """Packets of each kind by point and NAK port."""
    losses: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)
    """The times of the NAKs for a number, by receiver and its port."""
    answers: dict[int, list[int]] = field(default_factory=dict)
    """The times of the retransmissions of a number."""
    gaps: set[tuple[str, int, int]] = field(default_factory=set)
    copies: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    ports: dict[str, set[int]] = field(default_factory=dict)
    """The ports of the receiving processes of a host."""
    joining_ns: int = 0
    """From the first fragment of a datagram to its last: the time of the datagram is that of the last."""
    tolerance_ns: int = 0
    """Of times between two packets, where clocks drift."""
    files: Callable[[Scenario], dict[str, bytes]] | None = None

    @property
    def publisher(self) -> str:
        """The address of the source."""
        return f"10.{self.number}.0.1"

    @property
    def group(self) -> str:
        """The group that it sends to."""
        return f"239.101.{self.number}.{self.own_group}"

    def receiver(self, which: int = 0) -> str:
        """The address of a receiver."""
        return f"10.{self.number}.0.{2 + which}"

    def _count(self, kind: str, points: list[Point]) -> None:
        for point in points:
            self.counts.setdefault((point.name, self.nak_port), Counter())[kind] += 1

    def _down(self, at_ns: int, kind: str, datagram: bytes, points: list[Point] | None = None) -> None:
        packet = ipv4(udp(datagram), self.publisher, self.group)
        for point in self.points if points is None else points:
            point.see(at_ns, packet)
        self._count(kind, self.points if points is None else points)

    def send(self, at_ns: int, sqn: int, *, is_lost: bool = False) -> None:
        """Send a datagram for the first time. A lost one does not pass points at the receiver."""
        there = [point for point in self.points if not (is_lost and point.is_at_receiver)]
        self._down(at_ns, "datagrams", self._datagram(sqn), there)

    def again(self, at_ns: int, sqn: int) -> None:
        """Retransmit a datagram."""
        self.answers.setdefault(sqn, []).append(at_ns)
        self._down(at_ns, "retransmissions", self._datagram(sqn, AGAIN))

    def session_message(self, at_ns: int, number: int, lead: int) -> None:
        """Send a session message."""
        self._down(at_ns, "session_messages", sm(number, lead, 0, self.nak_port))

    def refuse(self, at_ns: int, sqn: int) -> None:
        """Send an NCF."""
        self._down(at_ns, "ncfs", ncf(0, 0, sqn, nak_port=self.nak_port))

    def nak(self, at_ns: int, sqn: int, which: int = 0, port: int = RECEIVER_PORT) -> None:
        """Let a NAK of a receiver, one process of its host, reach the source at a time."""
        asked = nak(sqn, nak_port=self.nak_port)
        packet = ipv4(udp(asked, port, self.nak_port), self.receiver(which), self.publisher)
        for point in self.points:
            point.see(at_ns, packet, is_up=True)
        self._count("naks", self.points)
        self.ports.setdefault(self.receiver(which), set()).add(port)
        self.losses.setdefault((self.receiver(which), port, sqn), []).append(at_ns)

    def repair(self, lost_ns: int, sqn: int, which: int = 0) -> None:
        """Let a receiver NAK a number and the source retransmit it."""
        self.nak(lost_ns + 2 * MS, sqn, which)
        self.again(lost_ns + 2 * MS + REPAIR_NS, sqn)

    def run(
        self, first: int = FIRST, count: int = COUNT, lost: tuple[int, ...] = LOST, at_ns: int = START_NS
    ) -> int:
        """Send datagrams, one per millisecond, and repair those that the first receiver loses. Returns the end."""
        for sqn in range(first, first + count):
            sent_ns = at_ns + (sqn - first) * MS
            self.send(sent_ns, sqn % 2**32, is_lost=sqn in lost)
            if sqn in lost:
                self.repair(sent_ns, sqn % 2**32)
        for point in self.points:
            if point.is_at_receiver:
                self.gaps |= {(point.name, low, high) for low, high in _runs(lost)}
        return at_ns + count * MS

    def _datagram(self, sqn: int, flags: int = 0x80) -> bytes:
        trail = (sqn - 100) % 2**32
        return data(sqn, message(1, sqn, bytes(60)), trail=trail, flags=flags, nak_port=self.nak_port)

    def shown_sessions(self) -> dict[int, int]:
        """The session in tables by NAK port: the session id, if only one process has it."""
        ports = {port for _, port in self.counts}
        return {port: SESSION if len(ports) == 1 else port << 32 | SESSION for port in ports}

    def shown_receiver(self, host: str, port: int) -> str:
        """The receiver in tables: the host, if only one process there receives."""
        return host if len(self.ports[host]) == 1 else f"{host}:{port}"

    def written(self, folder: Path) -> list[Path]:
        """Write the files of the points."""
        contents = self.files(self) if self.files is not None else as_pcap(self)
        paths = [folder / self.name / name for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return paths


def _runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    begin = None
    for number in sorted(numbers):
        if number - 1 not in numbers:
            begin = number
        if number + 1 not in numbers and begin is not None:
            yield begin, number


def ordered(point: Point) -> list[Packet]:
    """The packets of a point in the order of the capture."""
    return sorted(point.packets, key=lambda packet: packet.time_ns)


def as_pcap(scenario: Scenario) -> dict[str, bytes]:
    """One pcap file for each point."""
    return {point.file: pcap(ordered(point)) for point in scenario.points}


# ---- what a point shows ----


def routed(packet: bytes) -> bytes:
    """The packet behind a router."""
    return packet[:TTL_AT] + bytes([packet[TTL_AT] - 1]) + packet[TTL_AT + 1 :]


def mirror(ports: int) -> Frames:
    """A mirror of so many ports."""
    return lambda packet: [ethernet(packet)] * ports


def routed_mirror(packet: bytes) -> list[bytes]:
    """A mirror of a port before and one behind a router, with another tag."""
    return [ethernet(packet, tags=[10]), ethernet(routed(packet), tags=[20])]


def _outer(payload: bytes, protocol: int) -> bytes:
    return ethernet(ipv4(payload, "192.168.0.1", "192.168.0.2", protocol=protocol))


def erspan(packet: bytes) -> list[bytes]:
    """ERSPAN II: GRE with a number, and a header of eight bytes."""
    return [
        _outer(
            struct.pack("!HHI", 0x1000, 0x88BE, 1) + struct.pack("!HHI", 0x1000, 0, 0) + ethernet(packet), 47
        )
    ]


def vxlan(packet: bytes) -> list[bytes]:
    """VXLAN."""
    inner = struct.pack("!II", 0x08000000, 77 << 8) + ethernet(packet)
    return [_outer(udp(inner, 50_000, 4789), 17)]


def gre(packet: bytes) -> list[bytes]:
    """GRE with IP."""
    return [_outer(struct.pack("!HH", 0, 0x0800) + packet, 47)]


def mpls(packet: bytes) -> list[bytes]:
    """Two MPLS labels."""
    return [ethernet(struct.pack("!II", 16 << 12 | 64, 17 << 12 | 1 << 8 | 64) + packet, 0x8847)]


def tagged(packet: bytes) -> list[bytes]:
    """Two VLAN tags."""
    return [ethernet(packet, tags=[100, 7])]


def native_and_tunnelled(packet: bytes) -> list[bytes]:
    """A mirror of a port inside a tunnel and one outside."""
    return [ethernet(packet), *vxlan(packet)]


def fragments(*, is_reversed: bool = False, times: int = 1) -> Frames:
    """Every packet in fragments of 40 bytes."""
    numbers = [0]

    def shown(packet: bytes) -> list[bytes]:
        numbers[0] += 1
        body = packet[20:]
        source, destination = (".".join(map(str, packet[at : at + 4])) for at in (12, 16))
        pieces = [
            ipv4(
                body[at : at + 40],
                source,
                destination,
                fragment=(at + 40 < len(body)) << 13 | at // 8,
                ident=numbers[0],
            )
            for at in range(0, len(body), 40)
        ]
        ordered_pieces = pieces[::-1] if is_reversed else pieces
        return [ethernet(one) for one in ordered_pieces for _ in range(times)]

    return shown


# ---- scenarios ----

SCENARIOS: dict[str, Callable[[int], Scenario]] = {}
"""A scenario by its name, which begins with a letter: names of points do."""


def scenario(build: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
    """Add a scenario whose points and traffic a function makes."""
    name = build.__name__

    def built(number: int) -> Scenario:
        made = Scenario(number, name, [])
        build(made)
        return made

    SCENARIOS[name] = built
    return build


def _shown(name: str, shows: Frames, copies_per_packet: int = 0, joining_ns: int = 0) -> None:
    def build(made: Scenario) -> None:
        made.points, made.joining_ns = [Point(f"{name}-switch.pcap", shows=shows)], joining_ns
        made.run()
        if copies_per_packet:
            counted = made.counts[made.points[0].name, NAK_PORT].total()
            made.copies[made.points[0].name] = counted * copies_per_packet

    build.__name__ = name
    scenario(build)


def _clocked(name: str, clock: Clock, tolerance_ns: int = 0) -> None:
    def build(made: Scenario) -> None:
        made.points = [Point(f"{name}-near.pcap"), Point(f"{name}-far.pcap", clock, 250 * US)]
        made.tolerance_ns = tolerance_ns
        made.run(count=400, lost=(*LOST, 1_200, 1_380))

    build.__name__ = name
    scenario(build)


_clocked("clocks_exact", exact)
_clocked("clock_ahead", lambda at_ns: at_ns + 30 * MS)
_clocked("clock_behind", lambda at_ns: at_ns - 30 * MS)
_clocked("clock_seconds_ahead", lambda at_ns: at_ns + 3 * SECOND)
_clocked("clock_drifts", lambda at_ns: at_ns + (at_ns - START_NS) // 500, 10 * US)
_clocked("clock_steps_ahead", lambda at_ns: at_ns + (3 * SECOND if at_ns >= START_NS + 210 * MS else 0))
_shown("mirror_of_two_ports", mirror(2), 1)
_shown("mirror_of_four_ports", mirror(4), 3)
_shown("mirror_of_a_router", routed_mirror, 1)
_shown("mirror_of_a_tunnel", native_and_tunnelled, 1)
_shown("tunnel_erspan", erspan)
_shown("tunnel_vxlan", vxlan)
_shown("tunnel_gre", gre)
_shown("tunnel_mpls", mpls)
_shown("vlan_tags", tagged)
_shown("fragments_in_order", fragments(), joining_ns=6 * US)
_shown("fragments_reversed", fragments(is_reversed=True), joining_ns=6 * US)


@scenario
def fragments_mirrored(made: Scenario) -> None:
    """Each fragment twice."""
    made.points = [Point("fragments_mirrored-switch.pcap", shows=fragments(times=2))]
    made.joining_ns = 12 * US
    made.run()
    [point] = made.points
    made.copies[point.name] = len(point.packets) // 2


@scenario
def mirror_and_clock(made: Scenario) -> None:
    """A mirror of two ports far from the source, with a clock that is ahead."""
    made.points = [
        Point("mac-near.pcap"),
        Point("mac-far.pcap", lambda at_ns: at_ns + SECOND, 250 * US, mirror(2)),
    ]
    made.run()
    made.copies["mac-far"] = made.counts["mac-far", NAK_PORT].total()


@scenario
def mirror_and_repeated_repairs(made: Scenario) -> None:
    """The source retransmits twice, 2 ms apart: both count, the copies of both do not."""
    made.points = [Point("mirror_repeats-switch.pcap", shows=mirror(2))]
    end_ns = made.run()
    for at, sqn in enumerate(LOST):
        made.again(end_ns + at * MS, sqn)
    made.copies["mirror_repeats-switch"] = made.counts["mirror_repeats-switch", NAK_PORT].total()


@scenario
def restart_lower(made: Scenario) -> None:
    """The source restarts with lower numbers."""
    made.points = [Point("restart_lower-switch.pcap")]
    end_ns = made.run(first=500_000, lost=(500_010,))
    made.run(first=7, lost=(30,), at_ns=end_ns + SECOND)
    made.restarts = 1


@scenario
def restart_higher(made: Scenario) -> None:
    """The source restarts with numbers far ahead."""
    made.points = [Point("restart_higher-switch.pcap")]
    end_ns = made.run()
    made.run(first=2**31, lost=(2**31 + 10,), at_ns=end_ns + SECOND)
    made.restarts = 1


@scenario
def restart_at_two_points(made: Scenario) -> None:
    """Two points see the restart, one of them at the receiver."""
    made.points = [
        Point("restart_two-near.pcap"),
        Point("restart_two-far.pcap", exact, 200 * US, is_at_receiver=True),
    ]
    end_ns = made.run(first=500_000, lost=(500_010,))
    made.run(first=7, lost=(30,), at_ns=end_ns + SECOND)
    made.restarts = 1


@scenario
def numbers_wrap(made: Scenario) -> None:
    """The numbers wrap, which is no restart."""
    made.points = [Point("numbers_wrap-switch.pcap")]
    made.run(first=2**32 - 40, lost=(2**32 - 20, 2**32 + 20))


@scenario
def equal_names(made: Scenario) -> None:
    """Files of two hosts have one name."""
    made.points = [
        Point("equal_a/eth7.pcap"),
        Point("equal_b/eth7.pcap", exact, 200 * US, is_at_receiver=True),
    ]
    made.run()


def _rotated(made: Scenario, stem: str, parts: int) -> dict[str, bytes]:
    packets = ordered(made.points[0])
    size = -(-len(packets) // parts)
    return {
        f"{stem}_{1 + at:05}_20231114221320.pcap": pcap(packets[at * size : (at + 1) * size])
        for at in range(parts)
    }


@scenario
def rotation(made: Scenario) -> None:
    """One point in five files."""
    made.points = [Point("rotation-switch.pcap")]
    made.run()
    made.files = lambda made: _rotated(made, "rotation-switch", 5)


@scenario
def header_only_first(made: Scenario) -> None:
    """A rotation whose first and last file have a header only."""
    made.points = [Point("header_only-switch.pcap")]
    made.run()
    made.files = lambda made: {
        "header_only-switch_00000_20231114221319.pcap": pcap([]),
        **_rotated(made, "header_only-switch", 2),
        "header_only-switch_00003_20231114221322.pcap": pcap([]),
    }


@scenario
def blocks_without_packets(made: Scenario) -> None:
    """A pcapng file whose sections and interfaces are described again between the packets."""
    made.points = [Point("blocks-switch.pcapng")]
    made.run()

    def files(made: Scenario) -> dict[str, bytes]:
        parts = []
        for at, packet in enumerate(ordered(made.points[0])):
            parts += [section(), interface("<", 1, 0)] if at % 10 == 0 else []
            parts.append(enhanced(packet))
        return {"blocks-switch.pcapng": b"".join([*parts, section(), interface()])}

    made.files = files


@scenario
def tail_lost(made: Scenario) -> None:
    """The last 20 datagrams do not reach the receiver; session messages say so."""
    made.points = [Point("tail_lost-host.pcap", is_at_receiver=True)]
    tail = tuple(range(FIRST + COUNT - 20, FIRST + COUNT))
    for sqn in range(FIRST, FIRST + COUNT):
        made.send(START_NS + sqn * MS, sqn, is_lost=sqn in tail)
    for number in range(5):
        made.session_message(START_NS + 3 * SECOND + number * 100 * MS, number, FIRST + COUNT - 1)
    made.gaps = {("tail_lost-host", tail[0], tail[-1])}


@scenario
def tail_late(made: Scenario) -> None:
    """A session message overtakes the last datagrams, which then arrive: nothing is missing."""
    made.points = [Point("tail_late-host.pcap", is_at_receiver=True)]
    made.session_message(START_NS + 60 * MS, 0, FIRST + COUNT - 1)
    made.run(lost=())


@scenario
def tail_repaired(made: Scenario) -> None:
    """The last datagrams are lost, revealed by session messages, and repaired."""
    made.points = [Point("tail_repaired-switch.pcap")]
    end_ns = made.run(lost=())
    made.session_message(end_ns + 10 * MS, 0, FIRST + COUNT - 1)
    for at in range(3):
        made.repair(end_ns + 12 * MS + at * 5 * MS, FIRST + COUNT - 3 + at)


@scenario
def two_receivers(made: Scenario) -> None:
    """Two receivers lose the same number: two losses, one retransmission."""
    made.points = [Point("two_receivers-switch.pcap")]
    end_ns = made.run()
    made.nak(end_ns, FIRST + 50, 0)
    made.nak(end_ns + 50 * US, FIRST + 50, 1)
    made.again(end_ns + REPAIR_NS, FIRST + 50)


@scenario
def two_receiving_processes(made: Scenario) -> None:
    """Two processes of a host lose the same number and one each: four losses with those of another host."""
    made.points = [
        Point("two_receiving-near.pcap"),
        Point("two_receiving-far.pcap", exact, 200 * US),
    ]
    end_ns = made.run(lost=())
    for at, (which, port) in enumerate(((0, 14401), (0, 14402), (1, 14401))):
        made.nak(end_ns + at * 50 * US, FIRST + 50, which, port)
    made.again(end_ns + REPAIR_NS, FIRST + 50)
    for at, port in enumerate((14401, 14402)):
        made.nak(end_ns + (10 + at) * MS, FIRST + 60 + at, 0, port)
        made.again(end_ns + (10 + at) * MS + REPAIR_NS, FIRST + 60 + at)


def _two_processes(name: str, groups: int) -> None:
    def build(made: Scenario) -> None:
        made.points = [
            Point(f"{name}-near.pcap"),
            Point(f"{name}-far.pcap", exact, 200 * US, is_at_receiver=True),
        ]
        made.run()
        made.nak_port, made.own_group = NAK_PORT + 1, groups
        made.run(lost=(1_030, 1_031), at_ns=START_NS + MS // 2)

    build.__name__ = name
    scenario(build)


_two_processes("two_nak_ports", 1)
_two_processes("two_groups", 2)


@scenario
def never_repaired(made: Scenario) -> None:
    """The source refuses a number: it is never sent again."""
    made.points = [Point("never_repaired-switch.pcap")]
    end_ns = made.run()
    for at in range(3):
        made.nak(end_ns + at * 20 * MS, FIRST + 9)
        made.refuse(end_ns + at * 20 * MS + REPAIR_NS, FIRST + 9)


def scenarios() -> list[Scenario]:
    """Return all scenarios, each with a number that its addresses have."""
    return [build(20 + at) for at, build in enumerate(SCENARIOS.values())]


# ---- comparing ----

Row = tuple[Any, ...]


def _wait_ns(made: Scenario, sqn: int, naks_ns: list[int]) -> int | None:
    """The time from the first NAK to the retransmission behind the last one, at the point next to the receivers."""
    answers = [at_ns for at_ns in made.answers.get(sqn, []) if at_ns >= naks_ns[-1]]
    way_ns = max(point.delay_ns for point in made.points)
    return min(answers) - naks_ns[0] + 2 * way_ns + made.joining_ns if answers else None


COUNTED = ("datagrams", "retransmissions", "session_messages", "naks", "ncfs")


def expected_rows(made: Scenario) -> dict[str, list[Row]]:
    """The rows of each table by the script."""
    shown = made.shown_sessions()
    return {
        "sessions": sorted(
            (point, shown[port], *(found[one] for one in COUNTED), made.restarts)
            for (point, port), found in made.counts.items()
        ),
        "losses": sorted(
            (made.shown_receiver(host, port), sqn, len(naks_ns), _wait_ns(made, sqn, naks_ns))
            for (host, port, sqn), naks_ns in made.losses.items()
        ),
        "gaps": sorted(made.gaps),
        "duplicates": [],
        "remarks": sorted(made.copies.items()),
    }


def found_rows(made: Scenario, tables: Tables) -> dict[str, list[Row]]:
    """The rows of the source of a scenario in the tables of captures."""
    own = {
        name: tables[name].filter(publisher=made.publisher)
        for name in ("sessions", "losses", "gaps", "duplicates")
    }
    copies = tables["remarks"].filter(
        (pl.col("kind") == COPY) & pl.col("point").is_in([one.name for one in made.points])
    )
    wait_ns = pl.col("repaired_ns") - pl.col("nak_ns")
    return {
        "sessions": own["sessions"].select("point", "session_id", *COUNTED, "restarts").sort(pl.all()).rows(),
        "losses": own["losses"]
        .select("receiver", pl.col("sqn") % 2**32, "naks", wait_ns)
        .sort("receiver", "sqn")
        .rows(),
        "gaps": own["gaps"].select("point", "first_sqn", "last_sqn").sort(pl.all()).rows(),
        "duplicates": own["duplicates"].rows(),
        "remarks": copies.select("point", "packets").sort(pl.all()).rows(),
    }


def assert_true(made: Scenario, tables: Tables) -> None:
    """The tables have the rows of the truth, and no others."""
    found, expected = found_rows(made, tables), expected_rows(made)
    for name, rows in expected.items():
        if made.tolerance_ns and name == "losses":
            assert [row[:3] for row in found[name]] == [row[:3] for row in rows], (made.name, name)
            for mine, true in zip(found[name], rows, strict=True):
                assert abs(mine[3] - true[3]) <= made.tolerance_ns, (made.name, mine, true)
            continue
        assert found[name] == rows, (made.name, name)
