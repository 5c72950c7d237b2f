"""The stack's datagrams with keys, dissected by tshark, with all tags recomputed without libcrypto."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.tag_oracle import HEAD, TAG_BYTES, TRAILER_BYTES, sender_tag, session_tag
from tests.wire.conftest import emitted
from tests.wire.dissection import MARKS, Frame, frames, octets, tshark, values
from tests.wire.emit_keyed import FORGED, FULL_BYTES, RESOLUTION_SECRET, SECRET
from umstack.capture import decode
from umstack.cli.decode import command

DATA, SM, NAK, NCF = 0, 2, 3, 4
GROUPS = {"224.10.10.10", "224.10.10.12"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the capture and the facts, made once."""
    return emitted(tmp_path_factory, "emit_keyed")


@pytest.fixture(scope="module")
def keyed(folder: Path) -> list[Frame]:
    """All UDP frames with a trailer: all except the marker."""
    found = [
        frame for frame in frames(folder / "wire.pcapng") if "lbtrm" in frame.layers or "lbmr" in frame.layers
    ]
    assert len(found) > 20
    return found


def test_nothing_is_malformed(folder: Path) -> None:
    """W1: every datagram decodes, including its trailer."""
    assert tshark(folder / "wire.pcapng", "-Y", MARKS) == ""


def test_every_kind_of_datagram_has_a_correct_tag(keyed: list[Frame], folder: Path) -> None:
    """Tags cover data, retransmissions, SM, NAK, NCF, status messages and topic resolution; no timestamp
    occurs twice.
    """
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    ports = {facts["session_id"]: facts["nak_port"], FORGED.session_id: FORGED.nak_port}
    kinds: Counter[str] = Counter()
    stamps: Counter[tuple[str, str, int, bytes]] = Counter()
    for frame in keyed:
        payload = frame.payload
        plain, trailer, covered = payload[:-TRAILER_BYTES], payload[-TRAILER_BYTES:], payload[:-TAG_BYTES]
        assert trailer[:8] == HEAD
        assert trailer[8] == 7
        port = int(values(frame.layers["udp"], "udp.srcport")[0])
        if "lbmr" in frame.layers:
            kind = "lbmr"
            tag = sender_tag(RESOLUTION_SECRET, "lbmr", ("127.0.0.1", port), covered)
        elif frame.destination in GROUPS:
            again = frame.kind == DATA and plain[16] & 0x20
            kind = "again" if again else {DATA: "data", SM: "sm", NCF: "ncf"}[frame.kind]
            nak_port = ports[frame.session_id]
            tag = session_tag(
                SECRET, ("127.0.0.1", nak_port), (frame.destination, 14400), frame.session_id, covered
            )
        else:
            kind = "nak" if frame.kind == NAK else "status"
            tag = sender_tag(SECRET, "control", ("127.0.0.1", port), covered)
        assert payload[-TAG_BYTES:] == tag, kind
        kinds[kind] += 1
        where = "lbmr" if kind == "lbmr" else frame.destination
        stamps[where, kind if kind in ("nak", "status") else "", port, trailer[9:16]] += 1
    assert set(kinds) == {"data", "again", "sm", "ncf", "nak", "status", "lbmr"}
    assert set(stamps.values()) == {1}


def test_tshark_shows_trailers(keyed: list[Frame]) -> None:
    """DATA ends in a control message with an HMAC; in other types exactly the bytes of the trailer follow the
    fields.
    """
    full = 0
    for frame in keyed:
        if "lbmr" in frame.layers:
            continue
        size = frame.payload_bytes - TRAILER_BYTES
        assert frame.payload_bytes <= 1472
        if frame.kind == DATA:
            last = frame.messages[-1]
            assert octets(last, "lbmc.hmac.data") == frame.payload[-20:]
            assert all(not values(message, "lbmc.hmac.data") for message in frame.messages[:-1])
            full += frame.payload_bytes == 1472 and len(frame.messages) == 2 and size == 32 + FULL_BYTES
        elif frame.kind == SM:
            is_probe = size + TRAILER_BYTES == int.from_bytes(frame.payload[42:44], "big")
            assert size == 24 + 20 or is_probe  # with the cookie of flow control
        else:
            listed = "lbtrm.nak.num_naks" if frame.kind == NAK else "lbtrm.ncf.num_ncfs"
            fixed = 12 if frame.kind == NAK else 16
            assert size == fixed + 4 * int(values(frame.layers["lbtrm"], listed)[0], 0)
    assert full >= 1, "the longest message that fits is not fragmented"


def test_resolution_decodes_with_a_trailer(keyed: list[Frame]) -> None:
    """tshark dissects the records and skips the trailer."""
    resolution = [frame for frame in keyed if "lbmr" in frame.layers]
    topics = {topic for frame in resolution for topic in values(frame.layers["lbmr"], "lbmr.tir.name")}
    assert {"orders", "forged"} <= topics


def test_our_decoder_shows_the_tags(folder: Path) -> None:
    """Every row is well formed, data has a tag among its messages, and `umstack decode` shows it on every line,
    except for padded session messages.
    """
    file = str(folder / "wire.pcapng")
    rows = [row for batch in decode(file, only_ours=True) for row in batch.to_pylist()]
    assert {row["status"] for row in rows} == {"ok"}
    data = [row for row in rows if row["packet_type"] in ("DATA", "STATUS")]
    assert all([one["kind"] for one in row["messages"]].count("tag") == 1 for row in data)
    assert {topic["topic"] for row in rows for topic in row["advertisements"] or ()} == {"orders", "forged"}
    shown = CliRunner().invoke(command, [file])
    assert shown.exit_code == 0
    lines = [line for line in shown.output.splitlines() if " LBMR" not in line and " more bytes" not in line]
    assert lines
    assert all(" tag" in line for line in lines), shown.output
