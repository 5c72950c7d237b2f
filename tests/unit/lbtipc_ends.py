"""The ends of LBT-IPC sessions that tests need: a source and a receiver in processes of their own, and peers made of a
plain socket and mapped memory, which break the rules."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.waiting import SECONDS
from umstack import BurstLoss, EndOfSession, Message, UnrecoverableLoss
from umstack._core import lib
from umstack_xdp.closing import Closing

ROOT = Path(__file__).resolve().parents[2]

_CONTROL = struct.Struct("=IHHHHIIIqQ")
_MAGIC = 0x554D4950
_LOG_MAGIC = 0x554D4C47
HELLO, WELCOME, REFUSED, WAKE = 1, 2, 3, 4
_HEADER_BYTES = 4096
CAPACITY = int(lib.UM_SHARED_CAPACITY_MIN)
BEGUN_AT, END_AT = 64, 72
"""Offsets in the log's header."""
POSITION_AT, SLEEPING_AT, WANTED_AT = 0, 64, 128
"""Offsets in a receiver's page."""


class Control(NamedTuple):
    """One message of the control protocol."""

    kind: int
    session_id: int
    reason: int = 0
    version_low: int = 1
    version_high: int = 1
    capacity: int = 0
    is_source_paced: int = 0
    position: int = 0

    def encode(self) -> bytes:
        """Return its bytes."""
        versions = self.version_low, self.version_high
        return _CONTROL.pack(
            _MAGIC, self.kind, self.reason, *versions, self.session_id, self.capacity, self.is_source_paced,
            self.position, 0,
        )  # fmt: skip


def decode(data: bytes) -> Control:
    """Return the message with these bytes."""
    magic, kind, reason, low, high, session_id, capacity, is_source_paced, position, _ = _CONTROL.unpack(data)
    assert magic == _MAGIC
    return Control(kind, session_id, reason, low, high, capacity, is_source_paced, position)


def name_of(session_id: int, transport_id: int) -> str:
    """Return the abstract name of a session's control socket."""
    return f"\0umstack/LBTIPC_{session_id:x}_{transport_id}"


def _socket() -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(SECONDS)
    return peer


def send_with(peer: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send a message with descriptors."""
    fds = array.array("i", descriptors)
    peer.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if descriptors else [])


class RawReceiver(Closing):
    """A receiver that attaches to a source's session with a plain socket."""

    def __init__(self, transport: str) -> None:
        _, session, number = transport.split(":")
        self.session_id = int(session, 16)
        self.peer = _socket()
        self.peer.connect(name_of(self.session_id, int(number)))
        self.log = self.page = -1
        self.wakes_receiver = self.wakes_source = -1
        """The eventfds, from version 4 on."""

    def say(self, message: Control) -> None:
        """Send a message."""
        self.peer.send(message.encode())

    def hear(self) -> Control | None:
        """Return the next message; None: the source has closed the socket."""
        data, fds, _, _ = socket.recv_fds(self.peer, 64, 8)
        if len(fds) == 4:
            self.log, self.page, self.wakes_receiver, self.wakes_source = fds
        elif fds:
            self.log, self.page = fds
        return decode(data) if data else None

    def ask(self, key: int = 0, version: int = 3) -> Control:
        """Ask to attach, with the key of the log, and return the answer."""
        (signed,) = struct.unpack("=q", struct.pack("=Q", key))
        self.say(Control(HELLO, self.session_id, version_high=version, position=signed))
        answer = self.hear()
        assert answer is not None
        return answer

    def attach(self, key: int = 0, version: int | None = None) -> Control:
        """Attach, by the lowest version that does unless one is given, and return the WELCOME."""
        welcome = self.ask(key, version or (3 if key else 1))
        assert welcome.kind == WELCOME
        return welcome

    def write_page(self, offset: int, value: int) -> None:
        """Store a 64-bit value in the page."""
        with mmap.mmap(self.page, _HEADER_BYTES) as page:
            page[offset : offset + 8] = struct.pack("=q", value)

    def close(self) -> None:
        """Close the socket and the descriptors."""
        self.peer.close()
        for fd in (self.log, self.page, self.wakes_receiver, self.wakes_source):
            if fd >= 0:
                os.close(fd)
        self.log = self.page = self.wakes_receiver = self.wakes_source = -1


class RawSource(Closing):
    """A source of one session whose log a test writes as it likes."""

    def __init__(self, session_id: int, *, is_source_paced: bool = True, seals: bool = True) -> None:
        self.session_id, self.is_source_paced = session_id, is_source_paced
        self._listener = _socket()
        self._listener.bind(name_of(session_id, 20001))
        self._listener.listen(16)
        self.log, self.memory = self._segment(_HEADER_BYTES + CAPACITY, seals=seals)
        self.memory[:8] = struct.pack("=II", _LOG_MAGIC, CAPACITY)
        self.page, self.page_memory = self._segment(_HEADER_BYTES, seals=True)
        self.page_memory[WANTED_AT : WANTED_AT + 8] = struct.pack("=q", -1)
        self._peers: list[socket.socket] = []

    def _segment(self, size: int, *, seals: bool) -> tuple[int, mmap.mmap]:
        fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd, mmap.mmap(fd, size)

    def greet(self) -> socket.socket:
        """Accept a receiver and read its HELLO."""
        peer, _ = self._listener.accept()
        peer.settimeout(SECONDS)
        self._peers.append(peer)
        assert decode(peer.recv(64)).kind == HELLO
        return peer

    def welcome(self, **changes: Any) -> bytes:
        """Return a WELCOME with fields changed."""
        paced = int(self.is_source_paced)
        welcome = Control(WELCOME, self.session_id, capacity=CAPACITY, is_source_paced=paced)
        return welcome._replace(**changes).encode()

    def accept(self, **changes: Any) -> socket.socket:
        """Accept a receiver and welcome it, with fields of the message changed."""
        peer = self.greet()
        send_with(peer, self.welcome(**changes), [self.log, self.page])
        return peer

    def write(self, record: bytes, end: int, at: int = 0) -> None:
        """Store bytes in the ring, then the end of the log."""
        self.memory[_HEADER_BYTES + at : _HEADER_BYTES + at + len(record)] = record
        self.memory[BEGUN_AT:END_AT] = struct.pack("=q", end)
        self.memory[END_AT : END_AT + 8] = struct.pack("=q", end)

    def wake(self, peer: socket.socket) -> None:
        """Wake the receiver."""
        peer.send(Control(WAKE, self.session_id).encode())

    def close(self) -> None:
        """Close everything, as the death of the process would."""
        for peer in self._peers:
            peer.close()
        self._listener.close()
        self.memory.close()
        self.page_memory.close()
        for fd in (self.log, self.page):
            if fd >= 0:
                os.close(fd)
        self.log = self.page = -1


# ---- ends in processes of their own ----


def payload(number: int) -> bytes:
    """Return message `number`: its content depends on the number everywhere."""
    return b"%d " % number + bytes([number * 7 % 256]) * (number % 400)


def number_of(data: bytes) -> int:
    """Return the number of a message, whose every byte is checked."""
    number = int(data.split(b" ", 1)[0])
    assert data == payload(number), number
    return number


def start(role: str, topic: str, **spec: Any) -> subprocess.Popen[str]:
    """Start an end, without privileges, and return it once it is ready."""
    drop = (
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    )
    text = json.dumps({"role": role, "topic": topic, "addresses": OWN_ADDRESSES, **spec})
    end = subprocess.Popen(
        [*drop, sys.executable, "-m", "tests.unit.lbtipc_ends", text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert end.stdout is not None
    assert json.loads(end.stdout.readline())["ready"]
    return end


def stop(*ends: subprocess.Popen[str]) -> None:
    """Kill ends that still run, and close their pipes."""
    for end in ends:
        end.kill()
        with end:
            pass


def result_of(end: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a receiver printed at its end."""
    assert end.stdout is not None
    line = end.stdout.readline()
    assert line, "the receiver died"
    return dict(json.loads(line))


def _capabilities() -> int:
    """Return the bits of this process' effective capabilities."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)


def _receive(spec: dict[str, Any]) -> None:
    """Receive until the session ends; print the numbers of messages and of lost ones, and the capabilities."""
    result = {"messages": 0, "lost": 0, "capabilities": _capabilities()}
    expected: int | None = None
    has_ended = False
    with (
        open_context(**spec["addresses"]) as context,
        context.receiver(spec["topic"], **spec.get("options", {})) as one,
    ):
        print(json.dumps({"ready": True}), flush=True)
        while not has_ended:
            for row in one.poll(4096, 0.5).events():
                if isinstance(row, Message):
                    number = number_of(row.data)
                    assert expected is None or number == expected, (number, expected)
                    expected = number + 1
                    result["messages"] += 1
                elif isinstance(row, UnrecoverableLoss | BurstLoss):
                    first = row.first_sequence_number if isinstance(row, BurstLoss) else row.sequence_number
                    count = row.sequence_number - first + 1
                    result["lost"] += count
                    expected = None if expected is None else expected + count
                has_ended |= isinstance(row, EndOfSession)
    print(json.dumps(result), flush=True)


def _send(spec: dict[str, Any]) -> None:
    """Send numbered messages until killed, or until standard input is closed: the tests have ended."""
    with (
        open_context(**spec["addresses"]) as context,
        context.source(spec["topic"], transport="lbtipc", **spec.get("options", {})) as source,
    ):
        print(json.dumps({"ready": True}), flush=True)
        source.wait_connected(spec.get("receivers", 1), SECONDS)
        os.set_blocking(sys.stdin.fileno(), False)
        number, is_open = 0, True
        while is_open:
            source.send_many([payload(number + step) for step in range(64)], flush=True, timeout=SECONDS)
            number += 64
            with contextlib.suppress(BlockingIOError):
                is_open = os.read(sys.stdin.fileno(), 1) != b""


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    {"receive": _receive, "send": _send}[chosen["role"]](chosen)
