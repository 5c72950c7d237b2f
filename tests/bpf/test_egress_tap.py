"""bpf/egress_tap.bpf.c through BPF_PROG_TEST_RUN: the frames it keeps, its records, and frames that do not fit.

The ring is read here by its documented layout, independently of the reader in C.
"""

from __future__ import annotations

import ipaddress
import mmap
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from scapy.layers.inet import TCP

from tests.bpf.frames import TAGS, ethernet, ipv4, ipv6, udp
from tests.kernels import needs_tai_clock
from tests.unit.test_packet_filter import is_kept
from umstack.capture.writing.egress_way import egress_filter
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.config import Config
from umstack_xdp import BpfObject, unavailable
from umstack_xdp.egress_tap import NAME, RING_MIN_BYTES

pytestmark = [
    pytest.mark.skipif(unavailable(NAME) is not None, reason=str(unavailable(NAME))),
    needs_tai_clock,
]

TC_ACT_UNSPEC = 0xFFFFFFFF
BUSY, DISCARDED = 1 << 31, 1 << 30
HEADER_BYTES = 8
RECORD = struct.Struct("=QIIIIIHH")
STAMP = struct.Struct("=QQII")
SO_ATTACH_BPF = 50
STAMPS_SPARE = 64


class Tap:
    """A loaded tap that is not attached, and the records it has written."""

    def __init__(self, programs: BpfObject, stack: ExitStack) -> None:
        self.programs = programs
        ring = programs.map("ring")
        page = mmap.PAGESIZE
        self._consumed = stack.enter_context(mmap.mmap(ring.fd, page))
        self._produced = stack.enter_context(
            mmap.mmap(ring.fd, page + 2 * RING_MIN_BYTES, prot=mmap.PROT_READ, offset=page)
        )

    def keep(self, packet_filter: PacketFilter) -> None:
        """Set the filter."""
        wanted = egress_filter(packet_filter)
        assert wanted is not None
        self.programs.map("filter").write(wanted.packed())

    def run(self, packet: bytes, **options: int) -> None:
        """Run the tap on one packet."""
        assert self.programs.program(NAME).test_run(packet, **options).result == TC_ACT_UNSPEC

    def counter(self, number: int) -> int:
        """Return one of the counters, each of eight bytes."""
        (value,) = struct.unpack_from("=Q", self.programs.map("counters").read(), 8 * number)
        return int(value)

    def lost(self) -> int:
        """Return the number of packets that did not fit into the ring."""
        return self.counter(0)

    def take(self) -> list[tuple[tuple[int, ...], bytes]]:
        """Return the records since the last call, each with its frame."""
        (position,) = struct.unpack_from("=Q", self._consumed)
        (end,) = struct.unpack_from("=Q", self._produced)
        found = []
        while position < end:
            at = mmap.PAGESIZE + position % RING_MIN_BYTES
            (word,) = struct.unpack_from("=I", self._produced, at)
            assert not word & (BUSY | DISCARDED)
            record = RECORD.unpack_from(self._produced, at + HEADER_BYTES)
            frame_at = at + HEADER_BYTES + RECORD.size
            found.append((record, self._produced[frame_at : frame_at + record[2]]))
            position += (word + HEADER_BYTES + 7) // 8 * 8
        struct.pack_into("=Q", self._consumed, 0, position)
        return found


@pytest.fixture
def tap() -> Iterator[Tap]:
    """Load the program with the smallest ring and the filter of the default configuration."""
    with ExitStack() as stack:
        programs = stack.enter_context(BpfObject(NAME, map_entries={"ring": RING_MIN_BYTES}))
        made = Tap(programs, stack)
        made.keep(DEFAULT)
        yield made


DEFAULT = PacketFilter.of_configuration(Config())
ANY_PORT = DEFAULT.narrowed(["239.77.0.0/16"], [])
SEVERAL = DEFAULT.narrowed(["239.1.0.0-239.1.0.9", "239.77.1.2", "239.99.0.0/24"], ["1-9", "14400", "20000"])
FILTERS = {"default": DEFAULT, "any port": ANY_PORT, "several": SEVERAL}


def to(address: str, port: int, **fields: object) -> bytes:
    """Return a datagram in a frame."""
    return ethernet(ipv4(udp(port), destination=address, **fields))


PACKETS: dict[str, bytes] = {
    "first group": to("224.10.10.10", 14400),
    "last group": to("224.10.10.14", 14400),
    "beyond the groups": to("224.10.10.15", 14400),
    "another port": to("224.10.10.10", 14401),
    "request": ethernet(ipv4(TCP(sport=40000, dport=14391), destination="10.0.0.1")),
    "answer": ethernet(ipv4(TCP(sport=14395, dport=40000), destination="10.0.0.2", option_words=2)),
    "another answer": ethernet(ipv4(TCP(sport=14396, dport=40000), destination="10.0.0.2")),
    "later fragment of a request": ethernet(
        ipv4(TCP(sport=40000, dport=14391), destination="10.0.0.1", frag=9)
    ),
    "resolution": to("224.9.10.11", 12965),
    "options": to("224.10.10.10", 14400, option_words=10),
    "options, another port": to("224.10.10.10", 14401, option_words=3),
    "first fragment": to("224.10.10.10", 14400, flags="MF"),
    "first fragment, another port": to("224.10.10.10", 9, flags="MF"),
    "later fragment of a group": to("224.10.10.10", 9, frag=100),
    "later fragment of another group": to("224.10.11.10", 14400, frag=100),
    "first unicast port": to("10.0.0.2", 14390),
    "last unicast port": to("10.0.0.2", 14399),
    "beyond the unicast ports": to("10.0.0.2", 14400),
    "later fragment of unicast": to("10.0.0.2", 14390, frag=100),
    "unicast port of a group": to("239.1.1.1", 14390),
    "broadcast": to("255.255.255.255", 14390),
    "range of groups": to("239.1.0.9", 20000),
    "between groups": to("239.1.0.10", 20000),
    "a single group": to("239.77.1.2", 9),
    "a network": to("239.77.255.255", 65535),
    "TCP": ethernet(ipv4(TCP(dport=14400), destination="224.10.10.10")),
    "IPv6": ethernet(ipv6()),
    "a tag in the frame": ethernet(ipv4(udp(), destination="224.10.10.10"), TAGS["802.1Q"]),
    "a header length that cannot be": to("224.10.10.10", 14400, ihl=2),
}


@pytest.mark.parametrize("filter_name", FILTERS)
@pytest.mark.parametrize("name", PACKETS)
def test_the_tap_keeps_the_same_packets_as_the_packet_socket(tap: Tap, filter_name: str, name: str) -> None:
    """Both filters agree on every packet, and the tap keeps whole frames."""
    tap.keep(FILTERS[filter_name])
    tap.run(PACKETS[name])
    keeps = is_kept(FILTERS[filter_name].program(), PACKETS[name])
    assert [frame for _, frame in tap.take()] == [PACKETS[name]] * keeps


def test_the_packets_distinguish_the_filters() -> None:
    """The table above is not vacuous: each filter keeps some packets and rejects some, and no two keep the same."""
    answers = {
        tuple(is_kept(packet_filter.program(), packet) for packet in PACKETS.values())
        for packet_filter in FILTERS.values()
    }
    assert len(answers) == len(FILTERS)
    assert all({True, False} == set(answer) for answer in answers)


def test_both_filters_agree_on_a_packet_cut_anywhere(tap: Tap) -> None:
    """Both filters reject a packet that ends before the fields they read."""
    whole, program = to("224.10.10.10", 14400, option_words=2), DEFAULT.program()
    for length in range(34, len(whole)):
        tap.run(whole[:length])
        assert len(tap.take()) == is_kept(program, whole[:length]), f"cut at {length}"


@pytest.mark.parametrize("size", [42, 128, 129, 512, 513, 1514])
def test_frames_of_every_size_are_whole(tap: Tap, size: int) -> None:
    """Small steps of the ladder of record sizes, and their edges."""
    payload = bytes(n % 251 for n in range(size - 42))
    packet = ethernet(ipv4(udp(14400, payload), destination="224.10.10.10"))
    tap.run(packet)
    ((record, frame),) = tap.take()
    assert frame == packet
    assert record[1:3] == (size, size)


def test_a_run_is_one_record(tap: Tap) -> None:
    """A run of datagrams is copied as one record, which contains their number."""
    tap.run(PACKETS["first group"], gso_segments=44)
    ((record, _),) = tap.take()
    assert record[4] == 44


def test_packets_that_do_not_fit_are_counted(tap: Tap) -> None:
    """A full ring loses packets, counts each datagram of a run, and accepts more once it has been
    read."""
    packet, count = PACKETS["first group"], 20_000
    tap.programs.program(NAME).test_run(packet, repeat=count)
    found = len(tap.take())
    assert 0 < found < count
    assert tap.lost() == count - found
    tap.programs.program(NAME).test_run(packet, repeat=count)
    lost = tap.lost()
    tap.run(packet, gso_segments=30)
    assert tap.lost() == lost + 30
    tap.take()
    tap.run(packet)
    assert len(tap.take()) == 1


class Socket:
    """A socket with one of the tap's filters, and the stamps that the filter writes.

    The filter of a packet socket sees frames from their link header, and so does that of a datagram socket to which
    frames are sent; a test run would remove the header.
    """

    def __init__(self, tap: Tap, kind: str) -> None:
        """Attach the filter of `incoming` or `mirrored`."""
        self._tap, self._first_counter = tap, {"incoming": 8, "mirrored": 24}[kind]
        self._stamps = tap.programs.map(f"{kind}_stamps")
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_BPF, tap.programs.program(f"let_in_{kind}").fd)
        self._receiver.setblocking(False)

    def takes(self, packet: bytes) -> bool:
        """Return true if the packet is accepted whole."""
        self._sender.send(packet)
        try:
            return self._receiver.recv(65536) == packet
        except BlockingIOError:
            return False

    def frames(self) -> int:
        """Return how many packets were accepted."""
        return self._tap.counter(self._first_counter)

    def refused(self) -> int:
        """Return how many packets were refused because no stamp was free."""
        return self._tap.counter(self._first_counter + 1)

    def release(self, frame: int) -> None:
        """Allow stamps up to this frame to be reused."""
        counters = bytearray(self._tap.programs.map("counters").read())
        struct.pack_into("=Q", counters, 8 * (self._first_counter + 8), frame)
        self._tap.programs.map("counters").write(bytes(counters))

    def stamp(self, frame: int) -> tuple[int, int, int]:
        """Return the frame whose stamp is at this place, its time and its number of packets."""
        found = self._stamps.read(struct.pack("=I", frame % self._stamps.max_entries))
        whose, time_ns, packets, _queue = STAMP.unpack(found)
        return int(whose), int(time_ns), int(packets)

    def close(self) -> None:
        """Close both ends."""
        self._sender.close()
        self._receiver.close()


@pytest.fixture
def incoming(tap: Tap) -> Iterator[Socket]:
    """Return a socket with the filter for incoming frames."""
    with closing(Socket(tap, "incoming")) as made:
        yield made


@pytest.mark.parametrize("filter_name", FILTERS)
@pytest.mark.parametrize("name", PACKETS)
def test_the_socket_filter_keeps_the_same_packets_as_the_others(
    tap: Tap, incoming: Socket, filter_name: str, name: str
) -> None:
    """The filter that stamps incoming frames agrees on every packet with the one without stamps."""
    tap.keep(FILTERS[filter_name])
    assert incoming.takes(PACKETS[name]) == is_kept(FILTERS[filter_name].program(), PACKETS[name])
    assert incoming.frames() == is_kept(FILTERS[filter_name].program(), PACKETS[name])


@pytest.mark.parametrize("kind", ["incoming", "mirrored"])
def test_each_accepted_frame_has_a_stamp(tap: Tap, kind: str) -> None:
    """Nanosecond receive times, by the number of the frame; refused frames have none."""
    with closing(Socket(tap, kind)) as watched:
        for number in range(1, 6):
            assert kind == "mirrored" or not watched.takes(PACKETS["another port"])
            before_ns = time.clock_gettime_ns(time.CLOCK_TAI)
            assert watched.takes(PACKETS["first group"])
            whose, time_ns, packets = watched.stamp(number)
            assert (whose, packets) == (number, 1)
            assert before_ns <= time_ns <= time.clock_gettime_ns(time.CLOCK_TAI)
        assert (watched.frames(), watched.refused()) == (5, 0)


def test_stamps_in_use_are_not_overwritten(tap: Tap) -> None:
    """A slow reader loses packets, which are counted, but no time is wrong."""
    with closing(Socket(tap, "mirrored")) as watched:
        most = tap.programs.map("mirrored_stamps").max_entries - STAMPS_SPARE
        packet = PACKETS["first group"]
        let_in = sum(watched.takes(packet) for _ in range(most + 100))
        assert (let_in, watched.frames(), watched.refused()) == (most, most, 100)
        assert watched.stamp(1)[0] == 1
        watched.release(10)
        assert sum(watched.takes(packet) for _ in range(20)) == 10
        assert watched.refused() == 110


def test_a_filter_that_does_not_fit_is_recognized() -> None:
    """The tap refuses more ranges than the program accepts, and a missing filter."""
    most = tuple((ipaddress.IPv4Address(n), ipaddress.IPv4Address(n)) for n in range(32))
    assert egress_filter(PacketFilter(most)) is not None
    assert egress_filter(PacketFilter((*most, most[0]))) is None
    assert egress_filter(None) is None
