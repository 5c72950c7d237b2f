"""Every datagram the stack emits, captured on a real wire with loss and dissected by tshark (W1).

One capture is made at the publisher's interface: it sees its own data and what receivers send back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from umstack.lab import Lab

HERE = Path(__file__).parent
MARKS = '_ws.malformed || _ws.short || _ws.expert.group == "Malformed" || _ws.expert.group == "Undecoded"'
TSHARK = [
    "tshark",
    "-2",
    "-o",
    "udp.try_heuristic_first:TRUE",
    "-o",
    "lbtrm.sequence_analysis:TRUE",
    "-o",
    "lbmc.reassemble_fragments:TRUE",
    "-o",
    "lbmc.use_heuristic_subdissectors:FALSE",
]
DATA, SM, NAK, NCF = 0, 2, 3, 4


def _why_not() -> str | None:
    if missing := [tool for tool in ("tshark", "tcpdump") if shutil.which(tool) is None]:
        return f"{missing[0]} is not installed"
    if os.geteuid() != 0:
        return "capturing in a lab needs root"
    return Lab.supported() or Lab.loss_supported()


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture and what both ends say about it."""

    path: Path
    publisher: dict[str, Any]
    subscriber: dict[str, Any]
    packets: list[dict[str, Any]]

    def of_type(self, kind: int) -> list[dict[str, Any]]:
        """The LBT-RM layers of one type, with the UDP length beside them."""
        return [p for p in self.packets if int(p["lbtrm"]["lbtrm.hdr"]["lbtrm.hdr.type"], 0) == kind]


def values(tree: object, field: str) -> list[int]:
    """Every value of a field anywhere in a dissection, in order."""
    return [int(text, 0) for text in texts(tree, field)]


def texts(tree: object, field: str) -> list[str]:
    """Every value of a field anywhere in a dissection, as tshark writes it."""
    if isinstance(tree, list):
        return [value for item in tree for value in texts(item, field)]
    if not isinstance(tree, dict):
        return []
    found: list[str] = []
    for key, item in tree.items():
        if key == field:
            found += item if isinstance(item, list) else [item]
        else:
            found += texts(item, field)
    return found


def _tshark(path: Path, *arguments: str) -> str:
    command = [*TSHARK, "-r", str(path), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _run(lab: Lab, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    publisher, subscriber = lab.hosts[0], lab.hosts[1]
    tcpdump = publisher.run(
        [
            "tcpdump",
            "-i",
            publisher.interface,
            "-U",
            "--immediate-mode",
            "-B",
            "65536",
            "-w",
            str(path),
            "udp",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tcpdump.stderr is not None
    assert tcpdump.stderr.readline()  # it says that it listens
    receiving = subscriber.run(
        [sys.executable, str(HERE / "wire_subscriber.py"), subscriber.interface],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiving.stdout is not None
    assert receiving.stdout.readline() == "ready\n"
    publishing = publisher.run(
        [sys.executable, str(HERE / "wire_publisher.py"), publisher.interface],
        stdout=subprocess.PIPE,
        text=True,
    )
    sent, _ = publishing.communicate(timeout=60)
    received, _ = receiving.communicate("", timeout=20)
    tcpdump.terminate()
    tcpdump.wait(10)
    assert publishing.returncode == 0
    assert receiving.returncode == 0
    return json.loads(sent), json.loads(received)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A run of one publisher and one subscriber across a switch that loses a fifth of the datagrams."""
    if (reason := _why_not()) is not None:
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("wire") / "run.pcap"
    with Lab(hosts=2, loss=0.2) as lab:
        print(f"lab {lab.name}, seed {lab.seed}")
        publisher, subscriber = _run(lab, path)
    layers = json.loads(_tshark(path, "-T", "json", "--no-duplicate-keys", "-Y", "lbtrm"))
    packets = [packet["_source"]["layers"] for packet in layers]
    return Capture(path, publisher, subscriber, packets)


def test_everything_decodes_and_every_type_was_emitted(capture: Capture) -> None:
    """W1: DATA, SM, NAK, NCF, retransmissions, TSNI, fragments, batch flags and status messages, none malformed."""
    assert _tshark(capture.path, "-Y", MARKS) == ""
    every_udp = set(_tshark(capture.path, "-T", "fields", "-e", "frame.number", "-Y", "udp").split())
    known = set(_tshark(capture.path, "-T", "fields", "-e", "frame.number", "-Y", "lbtrm || lbmr").split())
    assert every_udp == known
    kinds = {int(p["lbtrm"]["lbtrm.hdr"]["lbtrm.hdr.type"], 0) for p in capture.packets}
    assert kinds == {DATA, SM, NAK, NCF}
    data = capture.of_type(DATA)
    assert any(values(p, "lbmc.frag.offset") for p in data)
    assert any(1 in values(p, "lbmc.batch.flags.batch_start") for p in data)
    assert any(1 in values(p, "lbmc.batch.flags.batch_end") for p in data)
    assert any(values(p, "lbmc.tsni.num_recs") for p in data)
    assert any(values(p, "lbmc.extopt.id") == [85] for p in data)
    assert any(_is_retransmission(p) for p in data)
    assert capture.subscriber["counts"] == {"alpha": 200 + 3 + 1 + 1 + 400, "beta": 1 + 200 + 1}


def _is_retransmission(packet: dict[str, Any]) -> bool:
    return bool(values(packet, "lbtrm.data.flags_fec_type")[0] & 0x20)


def test_data_obeys_the_length_rules(capture: Capture) -> None:
    """W1, W4, UM-115, UX-28: length is headers and messages, version 0, trail not after the sqn, no IP fragment."""
    for packet in capture.of_type(DATA):
        payload = int(packet["udp"]["udp.length"]) - 8
        assert payload == 20 + sum(values(packet, "lbmc.msglen"))
        assert set(values(packet, "lbmc.version")) <= {0}
        sqn, trail = values(packet, "lbtrm.data.sqn")[0], values(packet, "lbtrm.data.trail_sqn")[0]
        assert trail <= sqn
        assert values(packet, "lbtrm.data.flags_fec_type")[0] & 0x80
        assert values(packet, "lbtrm.data.flags_tgsz") == [0]
        assert payload <= 1472
        assert int(packet["ip"]["ip.frag_offset"], 0) == 0
        assert texts(packet["ip"], "ip.flags.df") in (["1"], ["True"])


def test_fragments_reassemble_in_tshark(capture: Capture) -> None:
    """UM-42, UM-52, UX-25: each fragment is a message of its own, offsets run on, tshark puts them together."""
    fragments = [
        p for p in capture.of_type(DATA) if values(p, "lbmc.frag.offset") and not _is_retransmission(p)
    ]
    for packet in fragments:
        assert set(values(packet, "lbmc.frag.hdr_len")) == {16}
    totals = {value for p in fragments for value in values(p, "lbmc.frag.len")}
    assert totals == {256 * 40, 256 * 30}
    first = {}
    for packet in fragments:
        for sqn, offset, total in zip(
            values(packet, "lbmc.frag.first_sqn"),
            values(packet, "lbmc.frag.offset"),
            values(packet, "lbmc.frag.len"),
            strict=True,
        ):
            first.setdefault((sqn, total), []).append(offset)
    for (_, total), offsets in first.items():
        assert sorted(offsets) == list(range(0, total, 1424))
    assert "lbmc.reassembled" in json.dumps(capture.packets) or "Reassembled" in _tshark(capture.path, "-V")


def test_session_messages_tell_the_lead(capture: Capture) -> None:
    """UM-67, UM-68, UM-71: 24 bytes, an own counter, lead and trail of the data."""
    messages = capture.of_type(SM)
    counters = [values(p, "lbtrm.sm.sm_sqn")[0] for p in messages]
    assert counters == sorted(counters)
    highest = max(values(p, "lbtrm.data.sqn")[0] for p in capture.of_type(DATA) if not _is_status(p))
    for packet in messages:
        assert int(packet["udp"]["udp.length"]) - 8 == 24
        lead, trail = values(packet, "lbtrm.sm.lead_sqn")[0], values(packet, "lbtrm.sm.trail_sqn")[0]
        assert (lead - trail + 1) % 2**32 < 2**31
        assert values(packet, "lbtrm.sm.reserved") == [0]
    assert values(messages[-1], "lbtrm.sm.lead_sqn")[0] == highest


def _is_status(packet: dict[str, Any]) -> bool:
    return values(packet, "lbmc.extopt.id") == [85]


def test_naks_go_to_the_source(capture: Capture) -> None:
    """UM-119, UM-124: unicast to the source's address and NAK port; retransmissions go to the group."""
    source = capture.packets[0]["ip"]["ip.src"]
    for packet in capture.of_type(NAK):
        count = values(packet, "lbtrm.nak.num_naks")[0]
        assert int(packet["udp"]["udp.length"]) - 8 == 12 + 4 * count
        assert len(values(packet, "lbtrm.nak.list.nak")) == count
        assert values(packet, "lbtrm.nak.format")[0] & 0x0F == 0
        port = values(packet, "lbtrm.hdr.ucast_port")[0]
        assert int(packet["udp"]["udp.dstport"]) == port
    publisher = capture.publisher["session"].split(":")[1]
    assert {p["ip"]["ip.dst"] for p in capture.of_type(NAK)} == {publisher}
    assert source
    asked = {value for p in capture.of_type(NAK) for value in values(p, "lbtrm.nak.list.nak")}
    repaired = [p for p in capture.of_type(DATA) if _is_retransmission(p)]
    assert {values(p, "lbtrm.data.sqn")[0] for p in repaired} <= asked
    assert {p["ip"]["ip.dst"] for p in repaired} == {"224.10.10.10"}


def test_a_retransmission_is_the_datagram_again(capture: Capture) -> None:
    """UM-120, UM-121: the same sqn and the same messages; the flag and the trail may differ, LBMC keeps type 0."""
    originals: dict[int, dict[str, Any]] = {}
    compared = 0
    for packet in capture.of_type(DATA):
        if _is_status(packet):
            continue
        sqn = values(packet, "lbtrm.data.sqn")[0]
        if not _is_retransmission(packet):
            assert sqn not in originals
            originals[sqn] = packet
            continue
        for field in ("lbmc.tidx", "lbmc.sqn", "lbmc.msglen", "lbmc.type"):
            assert values(packet, field) == values(originals[sqn], field)
        compared += 1
    assert compared > 0
    assert compared == capture.publisher["stats"]["rxs_sent"]


def test_ncfs_give_their_reason(capture: Capture) -> None:
    """UM-129, UM-130, UM-132: NCFs to the group, with the list and a reason of the field's."""
    reasons = set()
    for packet in capture.of_type(NCF):
        count = values(packet, "lbtrm.ncf.num_ncfs")[0]
        assert int(packet["udp"]["udp.length"]) - 8 == 16 + 4 * count
        assert len(values(packet, "lbtrm.ncf.list.ncf")) == count
        assert packet["ip"]["ip.dst"] == "224.10.10.10"
        reasons.add(values(packet, "lbtrm.ncf.reason")[0])
    assert reasons <= {1, 2, 3}
    assert 2 in reasons


def test_tsnis_repeat_the_last_topic_sqn(capture: Capture) -> None:
    """UM-62, UM-65, UM-66: a control message in a datagram with a transport sqn of its own; records by topic."""
    found: dict[int, int] = {}
    for packet in capture.of_type(DATA):
        for count in values(packet, "lbmc.tsni.num_recs"):
            topics = values(packet, "lbmc.tsni.tsni_rec.tidx")
            assert len(topics) == count
            found.update(zip(topics, values(packet, "lbmc.tsni.tsni_rec.sqn"), strict=True))
    last: dict[int, int] = {}
    for packet in capture.of_type(DATA):
        pairs = zip(values(packet, "lbmc.tidx"), values(packet, "lbmc.sqn"), strict=True)
        for topic, sqn in pairs:
            last[topic] = max(sqn, last.get(topic, 0))
    assert found
    assert all(last[topic] == sqn for topic, sqn in found.items())


def test_the_status_message_decodes(capture: Capture) -> None:
    """W1, AE-16, AE-17: a control message with one extended option, sent to the NAK port."""
    statuses = [p for p in capture.of_type(DATA) if _is_status(p)]
    assert len(statuses) > 2
    for packet in statuses:
        assert values(packet, "lbmc.extopt.subtype") == [1]
        assert values(packet, "lbmc.type") == [8]
        assert int(packet["udp"]["udp.length"]) - 8 == 20 + 4 + 8 + 28
        assert int(packet["udp"]["udp.dstport"]) == values(packet, "lbtrm.hdr.ucast_port")[0]
