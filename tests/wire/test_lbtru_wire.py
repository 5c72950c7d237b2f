"""The stack's LBT-RU packet types, dissected by tshark (W1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.wire.conftest import emitted
from tests.wire.dissection import MARKS, Frame, frames, number, octets, topic_report, tshark, values
from tests.wire.layer_fields import differences
from umstack.scapy import LBTRU

DATA, SM, NAK, NCF, ACK, CREQ, RST = 0, 2, 3, 4, 5, 6, 7
TRAILER_BYTES = 28
ELICIT, LEAVE = 1, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the capture and the facts, made once."""
    return emitted(tmp_path_factory, "emit_lbtru")


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, Any]:
    """The facts that the senders recorded."""
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return found


@pytest.fixture(scope="module")
def lbtru(folder: Path) -> list[Frame]:
    """All LBT-RU frames."""
    return [frame for frame in frames(folder / "wire.pcapng") if "lbtru" in frame.layers]


def kind(frame: Frame) -> int:
    return number(frame.layers["lbtru"], "lbtru.hdr.type")


def of(frames: list[Frame], *kinds: int) -> list[Frame]:
    found = [frame for frame in frames if kind(frame) in kinds]
    assert found, kinds
    return found


def sent_from(frame: Frame) -> int:
    return number(frame.layers["udp"], "udp.srcport")


def session_of(frame: Frame) -> int | None:
    found = values(frame.layers["lbtru"], "lbtru.opt_sid.session_id")
    return int(found[0], 0) if found else None


def test_nothing_is_malformed(folder: Path) -> None:
    """The filters for malformed data match nothing, including keyed datagrams and those without a session id."""
    assert tshark(folder / "wire.pcapng", "-Y", MARKS) == ""


def test_every_kind_of_packet_is_captured(lbtru: list[Frame]) -> None:
    """Tshark decodes every packet type sent."""
    assert {kind(frame) for frame in lbtru} == {DATA, SM, NAK, NCF, ACK, CREQ, RST}


def test_datagrams_of_a_source(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """UX-28: DATA has 20 bytes of headers, one option, the session id, and the flag of retransmissions."""
    own = [frame for frame in of(lbtru, DATA) if session_of(frame) == said["session_id"]]
    of_source = [frame for frame in own if sent_from(frame) == said["source_port"]]
    assert of_source
    for frame in of_source:
        assert not values(frame.layers["lbtru"], "lbtru.opt_cid.client_id")
        assert frame.payload_bytes == 20 + sum(int(one) for one in values(frame.messages, "lbmc.msglen"))
    sqns = [number(frame.layers["lbtru"], "lbtru.data.sqn") for frame in of_source]
    assert set(range(4)) <= set(sqns)
    repaired = [frame for frame in of_source if frame.payload[2] & 0x40]
    assert {number(frame.layers["lbtru"], "lbtru.data.sqn") for frame in repaired} == {0}
    of_receivers = [frame for frame in own if sent_from(frame) != said["source_port"]]
    assert of_receivers, "no status message"
    reporting = 0
    for frame in of_receivers:
        assert len(values(frame.layers["lbtru"], "lbtru.opt_cid.client_id")) == 1
        flags = octets(frame.messages[0], "lbmc.extopt.data")[1]
        # An eliciting one has a topic report if it knows its position.
        with_topics = {0: [True], ELICIT: [True, False], LEAVE: [False]}[flags]
        subtypes = values(frame.messages, "lbmc.extopt.subtype")
        assert subtypes in [["1", "13"] if one else ["1"] for one in with_topics]
        for one in frame.messages[1:]:
            assert octets(one, "lbmc.extopt.data") == topic_report([said["topic_index"]])
            reporting += flags == 0
    assert reporting, "no topic report"


def test_the_answer_to_a_connection_request(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """UX-11: CREQ is followed by SM with SYN and the client id, then by ACKs with it; all have the session
    id.
    """
    first = of(lbtru, CREQ)[0]
    assert number(first.layers["lbtru"], "lbtru.hdr.request") == 0
    syn = next(frame for frame in of(lbtru, SM) if frame.payload[2] & 0x80)
    assert sent_from(syn) == said["source_port"]
    given = number(syn.layers["lbtru"], "lbtru.opt_cid.client_id")
    ack = of(lbtru, ACK)[0]
    assert number(ack.layers["lbtru"], "lbtru.opt_cid.client_id") == given
    assert number(ack.layers["lbtru"], "lbtru.ack.sqn") == number(syn.layers["lbtru"], "lbtru.sm.lead")
    for frame in (first, syn, ack):
        assert number(frame.layers["lbtru"], "lbtru.opt_sid.session_id") == said["session_id"]
    plain = next(frame for frame in of(lbtru, SM) if not frame.payload[2] & 0x80)
    assert plain.payload_bytes == 24


def test_naks_and_ncfs(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """UX-28: the stack sends a NAK for a gap of a forged source, and an NCF with its reason."""
    nak = next(frame for frame in of(lbtru, NAK) if sent_from(frame) == said["receive_port"])
    assert [int(one) for one in values(nak.layers["lbtru"], "lbtru.nak.list.nak")] == [101, 102]
    assert number(nak.layers["lbtru"], "lbtru.nak.num") == 2
    assert number(nak.layers["lbtru"], "lbtru.opt_cid.client_id") == 7
    assert nak.payload_bytes == 24 + 4 * 2
    ncf = of(lbtru, NCF)[0]
    assert number(ncf.layers["lbtru"], "lbtru.ncf.num") == 1
    assert [int(one) for one in values(ncf.layers["lbtru"], "lbtru.ncf.list.ncf")] == [0]
    assert number(ncf.layers["lbtru"], "lbtru.ncf.reason") in (1, 0x10)


def test_a_reset_has_no_options(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """An RST has no option because the dissector reads its options two bytes early."""
    assert said["reset"] == "07000000"
    assert all(frame.payload_bytes in (4, 4 + TRAILER_BYTES) for frame in of(lbtru, RST))


def test_packets_of_source_side_filtering(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """UX-27: the capture has the receiver's interest, DATA with the number of filtered datagrams, and the
    source's reports.
    """
    own = [frame for frame in of(lbtru, DATA) if session_of(frame) == said["filtered_session"]]
    extended = [values(frame.messages, "lbmc.extopt.subtype") for frame in own]
    interest = own[extended.index(["5"])]
    assert sent_from(interest) != said["filtered_port"]
    assert [int(one, 0) for one in values(interest.messages, "lbmc.ssf_creq.topic_idx")] == [said["wanted"]]
    of_source = [frame for frame in own if sent_from(frame) == said["filtered_port"]]
    reports = [frame for frame in of_source if values(frame.messages, "lbmc.extopt.subtype") == ["6"]]
    assert reports
    for frame in reports:
        assert frame.payload[2] & 0x40
        assert frame.payload_bytes == 20 + 4 + 8 + 20
    with_data = {
        number(frame.layers["lbtru"], "lbtru.data.sqn"): frame
        for frame in of_source
        if values(frame.messages, "lbmc.tidx")
    }
    topics = {int(one) for frame in with_data.values() for one in values(frame.messages, "lbmc.tidx")}
    assert topics == {said["wanted"]}
    assert [int.from_bytes(frame.payload[2:4]) for frame in with_data.values()] == [3]


def test_scapy_and_tshark_agree(lbtru: list[Frame], said: dict[str, Any]) -> None:
    """Both dissections of every frame of the session without keys are equal, field by field."""
    compared = [
        frame for frame in lbtru if session_of(frame) in (said["session_id"], said["filtered_session"])
    ]
    assert len(compared) > 10
    for frame in compared:
        layers = {"lbtru": frame.layers["lbtru"], "lbmc": frame.layers.get("lbmc", [])}
        assert differences(LBTRU(frame.payload), layers) == []
