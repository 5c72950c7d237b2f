"""Peers of LBT-TCP made of plain sockets: a source and a client that say what a test has them say."""

from __future__ import annotations

import select
import socket
import struct

from tests.waiting import SECONDS
from umstack_xdp.closing import Closing

ANSWER = bytes.fromhex("08100018ff14")
"""The head of the SSF init with which a source answers the greeting of a client."""


def message(topic_index: int, sqn: int, data: bytes) -> bytes:
    """An LBMC message of a topic."""
    return struct.pack("!BBHII", 0, 0, 12 + len(data), topic_index, sqn) + data


def tsni(topic_index: int, sqn: int) -> bytes:
    """Return a control message with the last number of a topic."""
    return struct.pack("!BBHBBHII", 8, 32, 16, 255, 12, 1, topic_index, sqn)


def control_session_id(session_id: int) -> bytes:
    """Return the first bytes of a client, which identify the session."""
    return struct.pack("!BBHBBHI", 8, 107, 12, 255, 8, 0, session_id)


def ssf_init(session_id: int, *, answering: bool) -> bytes:
    """A fake source that sends the given bytes and answers as configured."""
    return struct.pack(
        "!BBHBBBBIIHHI", 8, 16, 24, 255, 20, 0xA0 + answering, 0, session_id, 0, 0, 0, 0x7F000001
    )


def ssf_request(session_id: int, client: int, topic_index: int, *, included: bool = True) -> bytes:
    """A client wants a topic, or no longer."""
    return struct.pack(
        "!BBHBBBBIII", 8, 17, 20, 255, 16, 0, 0 if included else 1, session_id, topic_index, client
    )


def topic_limit(topic_index: int, most_bytes: int) -> bytes:
    """Return a client's report of the longest message of a topic; 0: any."""
    return struct.pack(
        "!BBHBBBBHHBBHII", 8, 254, 24, 255, 20, 0xC0, 85, 13, 0, 2, 0, 0, topic_index, most_bytes
    )


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        assert more, "the connection was closed"
        data += more
    return data


class RawSource(Closing):
    """A listening socket that clients of a session connect to."""

    def __init__(self, session_id: int = 0x5EED0001) -> None:
        self.session_id = session_id
        self.accepted = 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        self._peers: list[socket.socket] = []

    def accept(self, seconds: float = SECONDS) -> socket.socket:
        """The next client; TimeoutError when none comes."""
        self._socket.settimeout(seconds)
        peer, _ = self._socket.accept()
        peer.settimeout(SECONDS)
        self.accepted += 1
        self._peers.append(peer)
        return peer

    def greeting(self, peer: socket.socket) -> bytes:
        """Return the first bytes that it sends."""
        return _exactly(peer, 12)

    def read(self, peer: socket.socket, count: int) -> bytes:
        """Return the next bytes that it sends."""
        return _exactly(peer, count)

    def close(self) -> None:
        """Close everything."""
        for one in (*self._peers, self._socket):
            one.close()


class RawClient(Closing):
    """A connection to a real source."""

    def __init__(self, transport: str, receive_buffer: int = 0, own_address: str = "") -> None:
        _, address, port, *session = transport.split(":")
        self.session_id = int(session[0], 16) if session else 0
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self.socket.bind((own_address, 0))
        self.socket.connect((address, int(port)))

    def greet(self) -> None:
        """Say the session id."""
        self.socket.sendall(control_session_id(self.session_id))

    def answer(self) -> bytes:
        """Return the source's answer to the greeting, an SSF init, without the head of the control message."""
        message = self.exactly(24)
        assert message.startswith(ANSWER)
        return message[4:]

    def read(self) -> tuple[int, int, bytes]:
        """The next message: its type, its topic index and the rest of it."""
        kind, _, length = struct.unpack("!BBH", _exactly(self.socket, 4))
        body = _exactly(self.socket, length - 4)
        return kind, struct.unpack("!I", body[:4])[0] if kind == 0 else 0, body

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        return _exactly(self.socket, count)

    def is_closed(self) -> bool:
        """Whether the source has closed it, once everything sent was read."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def has_data(self, seconds: float) -> bool:
        """Whether something can be read, or the source has closed it, within this time."""
        ready = select.poll()
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(1000 * seconds))

    @property
    def was_refused(self) -> bool:
        """Whether the source has closed it; does not wait."""
        if not self.has_data(0):
            return False
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close it."""
        self.socket.close()
