"""The option encryption: payloads are opaque on the wire, over every transport, and mixed settings are refused by name.

tests/tag_oracle.py decrypts without libcrypto, from docs/authentication.md alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.utils import PcapNgReader

from tests.tag_oracle import session_plaintext
from tests.unit.keyed_peers import SECRET, write_keys
from tests.unit.loopback import open_context
from tests.unit.ways import FROM_AND_TO_A_DRIVER, ITS_COUNTERS, ITS_SESSION, alone
from tests.waiting import SECONDS, collect, wait_for
from tests.wire.dissection import MARKS, tshark
from umstack import Context, OptionError, Response
from umstack.scapy import LBTRM

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = FROM_AND_TO_A_DRIVER
TRANSPORTS = ("lbtrm", "lbtru", "tcp")
MARK = b"nobody but members may read this"
RETAINED = {"late_join": 1}


def options(folder: Path, **others: Any) -> dict[str, Any]:
    """Context options with a key and encryption."""
    file = folder / "keys"
    if not file.exists():
        write_keys(file, "*", (1, SECRET))
    keys = {"authentication_scope": "all", "authentication_key_file": str(file)}
    return {**keys, "encryption": "aes-256-gcm", **others}


@pytest.fixture
def sender(way: str, tmp_path: Path) -> Iterator[Context]:
    """A context that encrypts."""
    with open_context(**options(tmp_path)) as context:
        yield context


@pytest.fixture
def reader(way: str, tmp_path: Path) -> Iterator[Context]:
    """Another one."""
    with open_context(**options(tmp_path)) as context:
        yield context


def dropped(context: Context) -> dict[str, int]:
    """The counters of refused datagrams and connections that are not 0."""
    stats = context.stats()
    groups = [stats["context"], *stats["receiver_transports"], *stats["source_transports"]]
    found: dict[str, int] = {}
    for group in groups:
        for name, value in group.items():
            if "dropped_tag" in name and value:
                found[name.rsplit("_", 1)[1]] = value
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_of_every_kind_arrive(sender: Context, reader: Context, transport: str) -> None:
    """Retained, small, batched, empty and fragmented messages, with properties and as requests."""
    source = sender.source("secret", transport=transport, **RETAINED)
    past = [b"past %d" % number for number in range(300)]
    source.send_many(past, flush=True)
    receiver = reader.receiver("secret")
    assert [message.data for message in collect(receiver, 300)] == past
    present = [os.urandom(length) for length in (0, 1, 15, 16, 17, 64, 64, 1400, 5000, 100_000)]
    source.send_many(present, flush=True)
    source.send(b"with", flush=True, properties={"name": "value", "count": 7})
    got = collect(receiver, len(present) + 1)
    assert [message.data for message in got] == [*present, b"with"]
    assert dict(got[-1].properties) == {"name": "value", "count": 7}
    assert dropped(sender) == dropped(reader) == {}


def test_requests_and_responses_arrive(sender: Context, reader: Context) -> None:
    """A response travels over a connection of its own, which is encrypted as well."""
    source = sender.source("asked")
    receiver = reader.receiver("asked", lambda event: event.respond(b"re: " + event.data))
    receiver_is_known = receiver.wait_connected(timeout=SECONDS)
    assert receiver_is_known is None
    with source.request(b"question") as request:
        response = next(iter(request))
        assert isinstance(response, Response)
        assert response.data == b"re: question"
    assert dropped(sender) == dropped(reader) == {}


def tapped(folder: Path, encrypts: bool) -> Path:
    """The tap of a context that sends messages of several shapes."""
    others = {} if encrypts else {"encryption": "none"}
    file = folder / f"tap-{encrypts}.pcapng"
    with open_context(**options(folder, **others), tap=file) as context:
        source = context.source("secret", transport_lbtrm_multicast_address="224.10.10.10")
        for count in (1, 5):
            source.send_many([MARK + b"%d" % number for number in range(count)], flush=True)
        source.send(MARK * 200, flush=True)
        source.send(b"", flush=True)
    return file


def lbmc_of(file: Path) -> list[str]:
    """Types, lengths, numbers and options of each datagram as tshark decodes them, without what differs by session."""
    fields = ("lbmc.type", "lbmc.next_hdr", "lbmc.msglen", "lbmc.sqn", "lbmc.frag.offset")
    words = [word for field in fields for word in ("-e", field)]
    return tshark(file, "-Y", "lbtrm.data.sqn", "-T", "fields", *words).splitlines()


@alone(ITS_SESSION)
def test_payloads_are_opaque_and_headers_are_not(tmp_path: Path) -> None:
    """No payload is in the datagrams; with tags alone it is; tshark decodes both alike and without complaint."""
    encrypted, clear = tapped(tmp_path, True), tapped(tmp_path, False)
    assert MARK in clear.read_bytes()
    assert MARK[:8] not in encrypted.read_bytes()
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    assert lbmc_of(encrypted) == lbmc_of(clear) != []
    assert tshark(encrypted, "-Y", MARKS) == ""


@alone(ITS_SESSION)
def test_the_oracle_decrypts_what_is_sent(tmp_path: Path) -> None:
    """Key, nonce, covered bytes and payloads are those of the page, with one message and with several."""
    payloads = []
    with PcapNgReader(str(tapped(tmp_path, True))) as packets:
        for packet in packets:
            datagram = bytes(packet[UDP].payload)
            header = LBTRM(datagram)
            if packet[UDP].dport != 14400 or header.type != 0:
                continue
            places, at = [], 20
            while datagram[at] == 0:
                length = int.from_bytes(datagram[at + 2 : at + 4])
                head = 12 + (16 if datagram[at + 1] == 1 else 0)
                places.append((at + head, length - head))
                at += length
            source = packet["IP"].src, header.nak_port
            group = packet["IP"].dst, packet[UDP].dport
            payloads.append(session_plaintext(SECRET, source, group, header.session_id, datagram, places))
    assert b"".join(payloads).startswith(MARK + b"0" + b"".join(MARK + b"%d" % n for n in range(5)) + MARK)


@alone(ITS_COUNTERS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("encrypts", [True, False])
def test_mixed_settings_are_refused_by_name(tmp_path: Path, transport: str, encrypts: bool) -> None:
    """A host with the key that does not encrypt gets nothing from one that does, nor the other way round."""
    others = {"encryption": "none"}
    with (
        open_context(**options(tmp_path, **({} if encrypts else others))) as sending,
        open_context(**options(tmp_path, **(others if encrypts else {}))) as reading,
    ):
        source = sending.source("mixed", transport=transport)
        receiver = reading.receiver("mixed", transport_tcp_reconnect_interval=5)

        def is_refused() -> bool:
            source.send(MARK, flush=True)
            return "encryption" in dropped(reading)

        wait_for(is_refused, "the refusal")
        assert set(dropped(reading)) == {"encryption"}
        assert receiver.poll().messages() == []
        if transport == "tcp":
            events = [event for event in source.receiver_events() if event.kind == "refused"]
            assert [event.amount for event in events[:1]] == [6]


@alone(ITS_COUNTERS)
def test_retained_messages_are_refused_by_name(tmp_path: Path) -> None:
    """A receiver that does not encrypt reads no retained messages of a source that does."""
    with (
        open_context(**options(tmp_path)) as sending,
        open_context(**options(tmp_path, encryption="none")) as reading,
    ):
        source = sending.source("mixed", **RETAINED)
        source.send_many([MARK] * 100, flush=True)
        receiver = reading.receiver("mixed")
        wait_for(lambda: dropped(sending).get("encryption"), "the refusal at the request port")
        assert receiver.poll().messages() == []


@alone("test_keyed_tcp.py has this test for each way")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_is_lost_while_keys_are_exchanged(
    sender: Context, reader: Context, tmp_path: Path, transport: str
) -> None:
    """The three steps of a rotation under a stream; the new key is the one that encrypts at the end."""
    source = sender.source("rotated", transport=transport)
    receiver = reader.receiver("rotated")
    receiver.wait_connected(timeout=SECONDS)
    old, new = (1, SECRET), (2, bytes(reversed(SECRET)))
    number, got = 0, []
    for keys in ((old, new), (new, old), (new,)):
        write_keys(tmp_path / "keys", "*", *keys)
        seen = [context._engine.keyring._seen for context in (sender, reader)]
        while any(
            context._engine.keyring._seen == before
            for context, before in zip((sender, reader), seen, strict=True)
        ):
            source.send(b"%d" % number, flush=True)
            number += 1
            got += receiver.poll(1000, 0.01).messages()
    source.send(b"end", flush=True)
    wait_for(lambda: got.extend(receiver.poll(1000, 0.05).messages()) or got[-1].data == b"end", "the end")
    numbers = [message.data for message in got if message.data != b"end"]
    assert numbers == [b"%d" % one for one in range(number)]
    assert dropped(reader) == {}


def test_encryption_needs_keys_for_everything() -> None:
    """The option is refused, by name, with a scope that leaves DATA without tags."""
    for scope in ("none", "control"):
        with pytest.raises(OptionError, match=f"needs authentication_scope all, not {scope}") as refusal:
            open_context(encryption="aes-256-gcm", authentication_scope=scope)
        assert "authentication_key_file" in str(refusal.value.hint)
