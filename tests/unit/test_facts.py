"""Facts of captures whose truth is known, and what is put into rows and taken out again."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl
import pyarrow.compute as pc

from tests.spark.odd_captures import odd_captures
from tests.unit.capture_bytes import (
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    message,
    nak,
    pcap,
    udp,
)
from tests.unit.test_capture_selection import write_capture
from umstack.analysis.tables import tables_of
from umstack.capture import decode, split
from umstack.capture.generate import Traffic, Truth, generate
from umstack.capture.reading.tally import Tally
from umstack.facts.facts import Counter, Facts, facts_of
from umstack.facts.kinds import EPOCH_NS, NOTE
from umstack.facts.packed import PACKED, packed, unpacked
from umstack.facts.schema import FACTS, frame_schema, markdown, merges
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode

TRAFFIC = Traffic(
    seed=7, sessions=2, receivers=2, topics=3, messages_per_datagram=2, message_bytes=40, loss=0.01
)
PACKETS = 20_000
SAMPLE = Path(__file__).parents[1] / "wire" / "wire-sample.pcap"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """Give a generated capture and what it holds."""
    return generate(tmp_path_factory.mktemp("captures") / "switch.pcap", PACKETS, TRAFFIC)


def test_losses_are_those_that_were_generated(truth: Truth) -> None:
    """The analysis finds the losses that the generator recorded: receiver, number of NAKs, time of recovery."""
    facts = facts_of([str(truth.path)])
    kinds = dict(facts.counts.group_by("kind").agg(pl.col("packets").sum()).rows())
    assert kinds["DATA"] == truth.data
    assert kinds["RETRANSMISSION"] == truth.retransmissions
    assert (kinds["NAK"], kinds["NCF"]) == (truth.naks, truth.ncfs)
    lost = tables_of(facts)["losses"].filter(pl.col("receiver").is_not_null())
    found = {(row["session_id"], row["receiver"], row["sqn"] % 2**32): row for row in lost.to_dicts()}
    asked = truth.losses[truth.losses["nak_count"] > 0]
    wanted = {
        (
            truth.session_id(int(one["session"])),
            truth.receiver_address(int(one["receiver"])),
            int(one["sqn"]),
        ): one
        for one in asked
    }
    assert found.keys() == wanted.keys()
    assert len(found) > 100
    for key, one in wanted.items():
        assert (found[key]["naks"], found[key]["nak_ns"]) == (one["nak_count"], one["first_nak_ns"])
        if one["outcome"] == 0:
            assert found[key]["repaired_ns"] is not None


def test_topics_have_the_names_that_were_advertised(truth: Truth, tmp_path: Path) -> None:
    """Advertised elsewhere than it is published, in one datagram or several: by session and index it is the name."""
    session_id, publisher = truth.session_id(0), truth.source_address(0)
    address = LbtrmAddress(publisher, "224.10.10.10", session_id, 14400, 14390)
    printed = [Advertisement(f"topic.{index}", index, 0, address) for index in (1, 2)]
    other = Advertisement("other", 1, 0, address._replace(session_id=session_id + 99))
    payloads = [
        encode(ResolutionDatagram(("asked",), (printed[0], other))),
        encode(ResolutionDatagram((), (printed[1],))),
    ]
    packets = [
        Packet(1_700_000_000 * 10**9 + n, frame(one, destination_port=12965))
        for n, one in enumerate(payloads)
    ]
    (tmp_path / "resolution.pcap").write_bytes(pcap(packets))
    paths = [str(truth.path), str(tmp_path / "resolution.pcap")]
    rows = tables_of(facts_of(paths))["topics"].to_dicts()
    named = {(row["publisher"], row["session_id"], row["topic_index"]): row["topic"] for row in rows}
    assert len(named) == TRAFFIC.sessions * TRAFFIC.topics, (
        "what was only advertised is no topic of the capture"
    )
    assert {key: name for key, name in named.items() if name is not None} == {
        (publisher, session_id, 1): "topic.1",
        (publisher, session_id, 2): "topic.2",
    }


def test_rows_of_facts_are_the_facts(truth: Truth) -> None:
    """Put into rows part by part, and taken out of all of them at once, in another order."""
    parts = [packed(facts_of([part])) for part in split(str(truth.path), 500_000)]
    assert len(parts) > 2
    assert unpacked(reversed(parts))[0].equals(facts_of([str(truth.path)]))
    assert parts[0].schema.equals(PACKED)
    assert unpacked([packed(Facts())]) == {}


def test_every_frame_has_the_schema_that_is_documented(truth: Truth) -> None:
    """Types match and non-null columns have no nulls; every counted number has a rule for combining it."""
    facts = facts_of([str(truth.path)])
    for name in FACTS:
        if name == "sends":
            continue
        frame_of_it = facts.frame(name)
        assert frame_of_it.schema == frame_schema(name)
        for field in FACTS[name]:
            assert field.metadata[b"comment"]
            assert field.nullable or frame_of_it[field.name].null_count() == 0
    assert merges("counts")["packets"] == "sum"
    assert merges("counts")["first_ns"] == "min"


def test_the_schema_in_the_docs_is_the_one_in_force() -> None:
    """docs/facts.md has what `python -m umstack.facts.schema` prints."""
    assert markdown() in (Path(__file__).parents[2] / "docs" / "facts.md").read_text()


def test_what_is_sent_is_packed_small(truth: Truth) -> None:
    """Steps between sendings compress: far less than the twelve bytes each has in memory."""
    rows = packed(facts_of([str(truth.path)]))
    sends = rows.filter(pc.equal(rows["frame"], "sends"))
    size = sum(map(len, sends["content"].to_pylist()))
    assert size < 6 * truth.data


def _by_rows(paths: list[str], window_ns: int) -> dict[int, Facts]:
    """Facts of packets that have all become rows."""
    counter = Counter(window_ns)
    for path in paths:
        for batch in decode(path, only_ours=True):
            counter.take(batch)
    return counter.facts()


def _by_tally(paths: list[str], window_ns: int) -> dict[int, Facts]:
    counter = Counter(window_ns)
    for path in paths:
        for batch in decode(path, only_ours=True, tally=counter.tally, batch_rows=64):
            counter.take(batch)
    return counter.facts()


@pytest.mark.parametrize("window_ns", [0, 10_000_000])
def test_what_the_core_counts_is_what_its_rows_say(truth: Truth, tmp_path: Path, window_ns: int) -> None:
    """First sendings counted in C, and the same captures row by row: odd ones, cut ones, of any type and point."""
    odd_captures(tmp_path / "odd")
    write_capture(tmp_path / "types.pcap")
    cut = Traffic(seed=9, sessions=30, receivers=2, messages_per_datagram=3, snap_bytes=96, loss=0.01)
    paths = [
        *sorted(map(str, (tmp_path / "odd").glob("*.pcap*"))),
        str(tmp_path / "types.pcap"),
        str(generate(tmp_path / "cut.pcap", 5000, cut).path),
        str(truth.path),
        str(SAMPLE),
    ]
    paths = [path for path in paths if not path.endswith(("gz", "zst"))]
    rows, counted = _by_rows(paths, window_ns), _by_tally(paths, window_ns)
    assert rows.keys() == counted.keys()
    for window in rows:
        assert counted[window].equals(rows[window]), window


def test_a_tally_that_is_full_is_emptied_between_two_packets(truth: Truth) -> None:
    """However little it holds, nothing is lost or counted twice."""
    counter = Counter()
    counter.tally = Tally(0, EPOCH_NS, send_capacity=100)
    batches = 0
    for batch in decode(str(truth.path), only_ours=True, tally=counter.tally):
        counter.take(batch)
        batches += 1
    assert batches > truth.data // 100
    assert counter.facts()[0].equals(facts_of([str(truth.path)]))


@pytest.mark.parametrize("more", range(3))
def test_a_capture_that_ends_with_a_full_tally_gives_its_rows(tmp_path: Path, more: int) -> None:
    """Rows wait until the tally is emptied; at the end of a file they do not wait."""
    count = 4
    sent = [frame(data(sqn, message(1, sqn, b"payload"))) for sqn in range(count + more)]
    asked = ethernet(ipv4(udp(nak(1), 14400, 14390), "10.0.0.2", SOURCE))
    packets = [Packet(START_NS + at, content) for at, content in enumerate([asked, *sent])]
    (tmp_path / "switch.pcap").write_bytes(pcap(packets))
    counter = Counter()
    counter.tally = Tally(0, EPOCH_NS, send_capacity=count)
    for batch in decode(tmp_path / "switch.pcap", only_ours=True, tally=counter.tally):
        counter.take(batch)
    kinds = dict(counter.facts()[0].counts.group_by("kind").agg(pl.col("packets").sum()).rows())
    assert kinds == {"NAK": 1, "DATA": count + more}


def test_a_file_in_splits_has_the_notes_of_the_whole(tmp_path: Path) -> None:
    """Cut packets, impossible lengths and clock steps in every split are one note each, with the sum as its number."""
    packets = []
    for number in range(4_000):
        content = frame(data(number, message(1, number, bytes(100))))
        original = 1 << 31 if number % 100 == 7 else len(content)
        step_ns = -3_000_000_000 if number % 500 == 499 else 0
        packets.append(Packet(START_NS + number * 1_000_000 + step_ns, content[:70], original))
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap(packets))
    whole = facts_of([str(path)])
    parts = list(split(path, 40_000))
    assert len(parts) > 3
    assert facts_of(parts).equals(whole)
    remarks = tables_of(whole)["remarks"].filter(pl.col("kind") == NOTE)
    texts = sorted(text.removeprefix(f"note: {path}: ") for text in remarks["status"].to_list())
    assert texts == [
        "40 packets have an impossible length on the wire: their captured length counts",
        "captured with a snap length of 262144 bytes: 3,960 packets have only their first bytes, "
        "which hold the headers",
        "the clock steps backwards 8 times",
    ]
