"""Points of capture: which files are one, and the names under which they are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("polars")

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.truth_scenarios import FIRST, MS, SECOND, START_NS, Point, Scenario, fragments
from tests.unit.capture_bytes import NAK_PORT, ipv4, nak, udp
from umstack.analysis.tables import tables_of
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import Facts, facts_of
from umstack.facts.packed import packed
from umstack.facts.points import point_name, series_of, short_names
from umstack.facts.sessions import Receiver, receiver_ends, short_numbers, short_receivers
from umstack.monitor.finding_watch import FindingWatch
from umstack.pipeline.layout import session_name, session_of

NAMES = st.text("ab", min_size=1, max_size=2)
POINTS = st.builds(
    lambda folders, interface: "/".join(["", *folders]) + (f":{interface}" if interface else ""),
    st.lists(NAMES, min_size=1, max_size=4),
    st.sampled_from(["", "eth0", "eth1"]),
)


def test_the_files_of_a_rotation_are_one_point() -> None:
    """Suffixes of rotation and compression do not count, nor does the form of a local path; folders do."""
    for path in (
        "/a/lan-0001.pcapng",
        "file:///a/lan_00002_20260102030405.pcap.gz",
        "file:/a/lan.cap3",
        "/a/lan-0001.erf",
    ):
        assert series_of(path) == "/a/lan"
    assert series_of("s3://bucket/lan-0001.pcap") == "s3://bucket/lan"
    assert point_name("/a/lan.pcap", "eth/0") == "/a/lan:eth_0"


def test_short_names_are_the_shortest_that_differ() -> None:
    """Files of one name differ by their folders, whatever their interfaces; others keep their own name."""
    names = short_names(["/x/hostA/lan:eth0", "/x/hostA/lan:eth1", "/x/hostB/lan:eth0", "/x/switch"])
    assert names == {
        "/x/hostA/lan:eth0": "hostA/lan:eth0",
        "/x/hostA/lan:eth1": "hostA/lan:eth1",
        "/x/hostB/lan:eth0": "hostB/lan:eth0",
        "/x/switch": "switch",
    }
    assert short_names(["lan", "a/lan", "b/a/lan"]) == {"lan": "lan", "a/lan": "a/lan", "b/a/lan": "b/a/lan"}


@given(st.lists(POINTS, unique=True), st.lists(POINTS, unique=True))
def test_short_names_are_distinct_and_stay(first: list[str], later: list[str]) -> None:
    """No two points have one name, a name is the end of its point, and a name once given is kept."""
    names = short_names(first)
    more = short_names(later, names)
    assert more.keys() == {*first, *later}
    assert names.items() <= more.items()
    assert len(set(more.values())) == len(more)
    assert all(point.endswith(short) for point, short in more.items())


def test_files_of_one_name_in_two_folders_are_two_points(tmp_path: Path) -> None:
    """Both hosts have an eth0.pcap: each datagram is seen once at each, and what one lacks is not seen at the other."""
    for host in ("hostA", "hostB"):
        (tmp_path / host).mkdir()
    whole = tmp_path / "hostA" / "eth0.pcap"
    truth = generate(whole, 2_000, Traffic(seed=3, loss=0.0))
    shutil.copy(whole, tmp_path / "hostB" / "eth0.pcap")
    with (tmp_path / "hostB" / "eth0.pcap").open("r+b") as file:
        file.truncate(whole.stat().st_size // 2)  # host B saw the first half
    paths = [str(tmp_path / host / "eth0.pcap") for host in ("hostA", "hostB")]
    tables = tables_of(facts_of(paths))
    assert not len(tables["duplicates"])
    seen = {row["point"]: row["datagrams"] for row in tables["sessions"].to_dicts()}
    assert seen.keys() == {"hostA/eth0", "hostB/eth0"}
    assert seen["hostA/eth0"] == truth.data
    assert 0.4 < seen["hostB/eth0"] / truth.data < 0.6
    apart = Facts.merged([facts_of([paths[1]]), facts_of([paths[0]])])
    assert apart.equals(facts_of(paths))


def test_sessions_of_one_id_show_their_ports_and_keep_their_numbers() -> None:
    """An id that one session of a publisher has stands for it; in a monitor the first keeps it."""
    one, other, tcp = ("a", 5 << 32 | 7), ("a", 6 << 32 | 7), ("a", -14371)
    assert short_numbers([one, tcp, ("b", other[1])]) == {one: 7, tcp: -14371, ("b", other[1]): 7}
    assert short_numbers([one, other]) == {one: one[1], other: other[1]}
    assert short_numbers([one, other], {one: 7}) == {one: 7, other: other[1]}
    assert session_name(*one) == "a_7_5"
    for session in (one, tcp, ("a", 7), ("", -1)):
        assert session_of(session_name(*session)) == session


def test_receivers_of_one_host_show_their_ports_and_keep_their_names() -> None:
    """As sessions of one id do, with addresses of both versions."""
    one, other, six = ("a", 7, "10.0.0.2:14400"), ("a", 7, "10.0.0.2:14401"), ("a", 7, "[ff15::7]:14400")
    elsewhere: Receiver = ("b", 7, other[2])
    assert short_receivers([one, elsewhere, six]) == {one: "10.0.0.2", elsewhere: "10.0.0.2", six: "ff15::7"}
    assert short_receivers([one, other]) == {one: one[2], other: other[2]}
    assert short_receivers([one, other], {one: "10.0.0.2"}) == {one: "10.0.0.2", other: other[2]}
    ends = receiver_ends(pa.array(["10.0.0.2", "ff15::7", "10.0.0.2"]), pa.array([14400, 14400, None]))
    assert ends.to_pylist() == [one[2], six[2], "10.0.0.2"]


def test_a_monitor_keeps_the_names_of_receivers_over_a_restart(tmp_path: Path) -> None:
    """The first process of a host has its address, also after one with another port came."""
    for at, port in enumerate((14401, 14402)):
        made = Scenario(20, f"second-{at}", [Point("switch.pcap")])
        for sqn in range(FIRST, FIRST + 9):
            made.send(START_NS + at * SECOND + (sqn - FIRST) * MS, sqn + at * 100)
        made.nak(START_NS + at * SECOND + 5 * MS, FIRST + 2 + at * 100, 0, port)
        made.again(START_NS + at * SECOND + 6 * MS, FIRST + 2 + at * 100)
        facts = facts_of([str(path) for path in made.written(tmp_path)])
        watch = FindingWatch(tmp_path / "state", 100 * SECOND, late_ns=SECOND)
        watch.take(packed(facts, START_NS), at)
    found = pl.DataFrame(
        FindingWatch(tmp_path / "state", 100 * SECOND, late_ns=SECOND).finish()["recovery_latency"]
    )
    assert sorted(found["receiver"]) == [made.receiver(), f"{made.receiver()}:14402"]


def test_fragments_of_a_receiver_are_counted_for_its_address(tmp_path: Path) -> None:
    """The ports of the datagram are no part of it."""
    made = Scenario(20, "cut", [Point("switch.pcap", shows=fragments())])
    made.send(START_NS, FIRST)
    asked = udp(nak(*range(50)), 14400, NAK_PORT)
    made.points[0].see(START_NS + MS, ipv4(asked, made.receiver(), made.publisher))
    found = facts_of([str(path) for path in made.written(tmp_path)]).fragments
    ends = found.select("source_address", "destination_address").rows()
    assert sorted(ends) == [(made.publisher, made.group), (made.receiver(), made.publisher)]
