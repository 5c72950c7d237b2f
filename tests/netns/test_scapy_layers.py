"""The scapy layers in a lab: a stream captured behind a lossy port, and a NAK built by hand."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scapy.packet import Packet
from scapy.utils import rdpcap

import umstack.scapy as um
from tests.netns.endpoints import EndsIn, assert_whole
from tests.wire.agreement import assert_agreement
from tests.wire.dissection import MARKS, tshark
from tests.wire.layer_fields import parts
from umstack.lab import Host, Lab

MakeLab = Callable[..., Lab]

MARKER = b"the capture is complete"
MARKER_PORT = 9  # discard
CAPTURE_SECONDS = 20.0

pytestmark = pytest.mark.skipif(
    shutil.which("tshark") is None or shutil.which("dumpcap") is None, reason="tshark is not installed"
)


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    """Load the layers on their default ports."""
    um.load()
    yield
    um.unload()


def marker_socket() -> socket.socket:
    """Return a socket on a port that no dissector claims, unlike some ports that the kernel chooses."""
    marker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    marker.bind(("", MARKER_PORT))
    return marker


@contextmanager
def capturing(host: Host, sender: Host, file: Path) -> Iterator[None]:
    """Capture a host's interface, up to the last datagram sent in the block."""
    file.touch()
    file.chmod(0o666)
    command = ["dumpcap", "-q", "-i", host.interface, "-B", "64", "-w", str(file)]
    capture = host.run(command, stderr=subprocess.PIPE, text=True)
    try:
        assert capture.stderr is not None
        while "File:" not in (line := capture.stderr.readline()):
            assert line, "dumpcap did not start"
        yield
        deadline = time.monotonic() + CAPTURE_SECONDS
        with sender.call(marker_socket) as marker:
            while MARKER not in file.read_bytes():
                assert time.monotonic() < deadline, "the marker is not in the capture"
                marker.sendto(MARKER, (host.address, MARKER_PORT))
                time.sleep(0.02)
    finally:
        capture.send_signal(signal.SIGINT)
        capture.wait()


def read(file: Path) -> list[Packet]:
    """Return the LBT-RM datagrams of a capture."""
    return [packet[um.LBTRM] for packet in rdpcap(str(file)) if um.LBTRM in packet]


def test_a_run_with_loss_is_read_as_tshark_reads_it(
    make_lab: MakeLab, ends_in: EndsIn, tmp_path: Path
) -> None:
    """The layers agree with tshark on every field of a real run with NAKs, NCFs and retransmissions.

    The run has one receiver, so every retransmission and NCF answers one of its own NAKs.
    """
    lab = make_lab(hosts=2, segmentation="real")
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, context={"link_gro": 0})  # dumpcap writes runs that GRO joined as one
    publisher = ends.publish(
        receivers=1,
        context={"link_gso": 0, "transport_lbtrm_retransmit_rate_limit": 2_000_000},
        options={"transport_lbtrm_ignore_interval": 500},
    )
    file = tmp_path / "loss.pcapng"
    tmp_path.chmod(0o777)
    with capturing(lab.hosts[1], lab.hosts[0], file):
        lab.port(1).set(loss=0.05)
        count = 1_000
        publisher.ask(send=count)
        assert_whole(subscriber.await_received(count), count)
        lab.port(1).set(loss=0)
    assert tshark(file, "-Y", MARKS) == ""
    assert_agreement(file)
    seen: set[int] = set()
    naks: list[Packet] = []
    repairs = 0
    for packet in read(file):
        if um.LBTRMNak in packet:
            naks.append(packet)
        elif um.LBTRMData in packet and packet[um.LBTRMData].status() is None:
            if packet[um.LBTRMData].flags.retransmission:
                assert any(packet.answers(nak) for nak in naks)
                repairs += 1
            seen.add(packet[um.LBTRMData].sqn)
        elif um.LBTRMNcf in packet:
            assert any(packet.answers(nak) for nak in naks)
    assert len(naks) > 10
    assert {sqn for nak in naks for sqn in nak.sqns} <= seen, "each NAKed datagram arrived in the end"
    assert repairs > 10
    kinds = {type(part) for packet in read(file) for part in parts(packet)}
    assert {um.LBTRMSm, um.LBTRMNak, um.LBMCExtended} <= kinds


def test_a_nak_made_by_hand_is_answered(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """A NAK built by hand and sent in a lab is served, and the layers match the answer to it."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1)
    publisher = ends.publish(receivers=1)
    publisher.ask(send=100)
    subscriber.await_received(100)
    transport = publisher.ask()["stats"]["source_transports"][0]["transport"]
    _, source, nak_port, session_id, group, port = transport.split(":")
    nak = um.LBTRM(nak_port=int(nak_port), session_id=int(session_id, 16)) / um.LBTRMNak(sqns=[0])

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((group, int(port)))
        listener.settimeout(5)
        request = socket.inet_aton(group) + socket.inet_aton(lab.hosts[2].address)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        return listener

    with lab.hosts[2].call(listen) as listener:
        lab.await_join(group, 2)
        listener.sendto(bytes(nak), (source, int(nak_port)))
        while not (heard := um.LBTRM(listener.recv(2000))).answers(nak):
            pass
    assert heard[um.LBTRMData].sqn == 0
