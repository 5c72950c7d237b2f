"""The scapy layers dissect every field as tshark does: their own packets and the stack's (W1)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.config import conf
from scapy.fields import ConditionalField
from scapy.layers.inet import TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Raw
from scapy.utils import rdpcap, wrpcap

import umstack.scapy as um
from tests.wire.agreement import assert_agreement, top
from tests.wire.dissection import MARKS, OPTIONS, tshark
from tests.wire.layer_fields import FIELDS, parts
from tests.wire.sample import SESSION, data, frames

REFERENCE = Path(__file__).with_name("wire-sample.pcap")
"""Packets written byte by byte for the dissectors, without the layers and the stack."""

PERSISTENCE = REFERENCE.with_name("persistence-sample.pcap")
STORE_PORT = 14567

SHOWN = re.compile(r"[\s|]*(?:###\[ (.+) \]###|(\w+)\s*=|\\(\w+)\s*\\)")
"""A line of show(): the name of a layer, of a field, or of a field that holds packets."""

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    """Load the layers on their default ports, without hiding exceptions; restore the state afterwards."""
    had, conf.debug_dissector = conf.debug_dissector, True
    um.load()
    yield
    um.unload()
    conf.debug_dissector = had


def test_tshark_agrees_on_packets_built_by_the_layers(tmp_path: Path) -> None:
    """Issue "scapy layers": all layers, options and fields agree, nothing is malformed, and no field exists
    in only one dissection.
    """
    capture = tmp_path / "sample.pcap"
    wrpcap(str(capture), frames())
    assert tshark(capture, "-Y", MARKS) == ""
    read = assert_agreement(capture)
    seen = {type(part) for layer in read for part in parts(layer)}
    assert not set(FIELDS) - seen - {um.LBMRTopicOriginatingTransport}


def test_tshark_agrees_on_packets_of_the_stack(directory: Path) -> None:
    """Issue "scapy layers": both agree over a real run with NAKs, NCFs, retransmissions and status messages."""
    read = assert_agreement(directory / "wire.pcapng")
    kinds = {layer.type for layer in read if isinstance(layer, um.LBTRM)}
    assert kinds == {0, 2, 3, 4}
    for layer in read:
        data = bytes(layer)
        assert um.guess(data) is type(layer)
        layer.clear_cache()
        assert bytes(layer) == data


def test_tshark_agrees_on_the_reference_sample() -> None:
    """Issue "scapy layers": both agree on packets built neither by the layers nor by the stack."""
    assert tshark(REFERENCE, "-Y", MARKS) == ""
    read = assert_agreement(REFERENCE)
    assert {type(layer) for layer in read} == {um.LBTRM, um.LBTRU, um.LBMR, um.LBMCStream}
    assert len(read) == 33, "all frames except those that open the TCP connection"
    for layer in read:
        whole = bytes(layer)
        open_up(layer)
        assert bytes(layer) == whole


def test_tshark_agrees_on_the_reference_sample_of_persistence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both agree on every option and header of persistence, in packets that were written byte by byte."""
    for end in ("low", "high"):
        monkeypatch.setitem(OPTIONS, f"lbttcp.store_port_{end}", str(STORE_PORT))
    um.bind_ports(tcp=[STORE_PORT])
    shown = tshark(PERSISTENCE, "-Y", MARKS).splitlines()
    assert len(shown) == 1
    assert "RX-DATA" in shown[0], "the one fragment of a message, which is not reassembled over TCP"
    read = assert_agreement(PERSISTENCE)
    assert len(read) == 33, "all frames except those that open the TCP connection"
    for layer in read:
        whole = bytes(layer)
        open_up(layer)
        assert bytes(layer) == whole


def open_up(packet: Packet) -> None:
    """Set all computable fields to None."""
    for part in parts(packet):
        for name in (
            "length",
            "count",
            "next_header",
            "tqr_count",
            "tir_count",
            "info_length",
            "options_present",
            "extended_value",
        ):
            if name in part.fields:
                part.fields[name] = None
    packet.clear_cache()


def test_computed_fields_equal_those_of_the_c_core(directory: Path) -> None:
    """W1: lengths, counts and chains that the layers compute are those the C encoders wrote."""
    compared = 0
    for frame in rdpcap(str(directory / "wire.pcapng")):
        layer = top(frame)
        if layer is not None:
            data = bytes(layer)
            open_up(layer)
            assert bytes(layer) == data
            compared += 1
    assert compared > 1000


def test_answers(directory: Path) -> None:
    """Issue "scapy layers": retransmissions and NCFs answer an earlier NAK, and no other packets do."""
    read = [layer for frame in rdpcap(str(directory / "wire.pcapng")) if (layer := top(frame))]
    naks: list[Packet] = []
    answers = 0
    for layer in read:
        if um.LBTRMNak in layer:
            naks.append(layer)
        elif um.LBTRM in layer:
            is_repair = um.LBTRMData in layer and bool(layer[um.LBTRMData].flags.retransmission)
            is_answer = is_repair or um.LBTRMNcf in layer
            assert any(layer.answers(nak) for nak in naks) == is_answer
            answers += is_answer
    assert answers > 10
    queries = [layer for layer in read if isinstance(layer, um.LBMR) and layer.tqrs]
    tirs = [layer for layer in read if isinstance(layer, um.LBMR) and layer.tirs]
    assert any(tir.answers(query) for tir in tirs for query in queries)
    assert not any(query.answers(query) for query in queries if not query.tirs)
    elicits = [layer for layer in read if um.LBTRMData in layer and layer[um.LBTRMData].status() is not None]
    assert any(sm.answers(status) for sm in read if um.LBTRMSm in sm for status in elicits)


def test_answers_of_multicast() -> None:
    """LBT-RM: NCF and retransmission answer the NAK of their session that requests them, and no other."""
    layers = [frame[um.LBTRM] for frame in frames() if um.LBTRM in frame]
    (nak,) = (layer for layer in layers if um.LBTRMNak in layer)
    answering = [layer for layer in layers if layer.answers(nak)]
    assert [layer.type for layer in answering] == [4, 4, 4, 4, 0]
    repair = answering[-1]
    assert (repair[um.LBTRMData].sqn, bool(repair[um.LBTRMData].flags.retransmission)) == (103, True)
    for number in (102, 105):
        assert not data(number, repair=True).answers(nak)
        ncf = um.LBTRM(session_id=SESSION) / um.LBTRMNcf(sqns=[number])
        assert not ncf.answers(nak)
    elsewhere = um.LBTRM(session_id=SESSION + 1) / um.LBTRMNak(sqns=[103, 104])
    assert not any(layer.answers(elsewhere) for layer in layers)
    assert not (um.LBTRM(session_id=SESSION) / Raw(b"unread")).answers(nak)


def names(packet: Packet) -> Iterator[str]:
    """Yield the names of a packet's layers and fields in the order of show()."""
    yield str(packet.name)
    for field in packet.fields_desc:
        if isinstance(field, ConditionalField) and not field._evalcond(packet):
            continue
        yield str(field.name)
        inside = packet.getfieldval(field.name)
        for each in inside if isinstance(inside, list) else [inside]:
            if isinstance(each, Packet):
                yield from names(each)
    if not isinstance(packet.payload, NoPayload):
        yield from names(packet.payload)


def shown(text: str) -> list[str]:
    """Return the names of layers and fields in the output of show()."""
    found = (SHOWN.match(line) for line in text.splitlines() if line.strip())
    return [next(filter(None, line.groups())) for line in found if line is not None]


@pytest.mark.parametrize("number", range(len(frames())))
def test_show_lists_every_layer_and_field(number: int) -> None:
    """Issue "scapy layers": show() and show2() work for every kind of packet; show2() has all computed
    fields.
    """
    frame = frames()[number]
    assert shown(str(frame.show(dump=True))) == list(names(frame))
    computed = str(frame.show2(dump=True))
    assert shown(computed) == list(names(Ether(bytes(frame))))
    # A reset is a header without a body.
    assert set(names(frame)) - {um.LBTRURst().name} <= set(shown(computed))
    assert "= None" not in computed


def test_answers_of_unicast() -> None:
    """LBT-RU: SYN answers the connection request, ACK answers the SYN, NCF and retransmission answer the NAK,
    and nothing else is an answer.
    """
    layers = [packet[um.LBTRU] for packet in frames() if um.LBTRU in packet]
    request, syn, ack, _, nak, ncf, repair, _ = range(len(layers))
    found = {
        (a, q) for a, answer in enumerate(layers) for q, asked in enumerate(layers) if answer.answers(asked)
    }
    assert found == {(syn, request), (ack, syn), (ncf, nak), (repair, nak)}


def test_other_ports_and_no_port_at_all() -> None:
    """`bind_ports` and `guess_everywhere` bind on request, and `unload` undoes them."""
    nak = um.LBTRM(session_id=5) / um.LBTRMNak(sqns=[1])
    raw = bytes(UDP(sport=1, dport=5000) / Raw(bytes(nak)))
    assert um.LBTRM not in UDP(raw)
    um.bind_ports(lbtrm=[5000])
    assert UDP(raw)[um.LBTRMNak].sqns == [1]
    um.unload()
    assert um.LBTRM not in UDP(raw)
    assert um.LBTRM not in UDP(bytes(UDP(dport=14400) / Raw(bytes(nak))))
    um.guess_everywhere()
    for frame in frames():
        if UDP in frame:
            expected = top(frame)
            assert expected is not None
            elsewhere = UDP(bytes(UDP(sport=1, dport=5000) / Raw(bytes(expected))))
            found = top(elsewhere)
            assert type(found) is type(expected) or bytes(expected)[0] in (5, 6, 7), expected
    assert Raw in UDP(bytes(UDP(sport=1, dport=5000) / Raw(b"anything else")))


def test_default_ports_are_filled_in() -> None:
    """With the layers loaded, UDP has their default ports."""
    assert (UDP() / um.LBTRM()).dport == 14400
    assert (UDP() / um.LBMR()).dport == 12965


def test_options_of_the_lbtrm_header(tmp_path: Path) -> None:
    """Option headers follow the type header; tshark skips them by the next-header value."""
    options = [um.LBTRMOption(data=b"\1\2\3\4"), um.LBTRMOption()]
    message = um.LBMC(topic_index=1, sqn=2) / Raw(b"behind options")
    packet = um.LBTRM(session_id=5) / um.LBTRMData(sqn=9, trail=9, options=options, messages=[message])
    read = um.LBTRM(bytes(packet))
    assert [option.data for option in read[um.LBTRMData].options] == [b"\1\2\3\4", b""]
    assert read[um.LBTRMData].messages[0][Raw].load == b"behind options"


def test_messages_on_tcp_are_reassembled() -> None:
    """A stream of LBMC is framed by the lengths of its messages, for any segmentation."""
    whole = bytes(um.LBMC(type=10, topic_index=1, sqn=2) / Raw(b"x" * 100))
    assert um.LBMCStream.tcp_reassemble(whole + whole[:50], {}, {}) is None
    assert um.LBMCStream.tcp_reassemble(whole[:3], {}, {}) is None
    found = um.LBMCStream.tcp_reassemble(whole * 3, {}, {})
    assert found is not None
    assert len(found.messages) == 3
    lost = um.LBMCStream.tcp_reassemble(whole + b"\0\0\0\3 nonsense", {}, {})
    assert lost is not None
    assert lost.payload.load == b"\0\0\0\3 nonsense"
    assert TCP in next(frame for frame in frames() if um.LBMC in frame and TCP in frame)
