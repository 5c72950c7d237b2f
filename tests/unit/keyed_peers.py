"""Key files, and peers on connections with tags, whose tags are those of tests/tag_oracle.py."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tag_oracle import TRAILER_BYTES, RecordStream, key_check
from tests.waiting import SECONDS

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))
KEY_ID = 7


def write_keys(file: Path, pattern: str, *keys: tuple[int, bytes]) -> None:
    """A key file with these keys for topics, put in place in one step."""
    made = file.with_suffix(".new")
    made.write_text("".join(f"topic {pattern} {number} {secret.hex()}\n" for number, secret in keys))
    made.chmod(0o600)
    made.replace(file)


class KeyedPeer:
    """One side of a connection with tags."""

    def __init__(self, connection: socket.socket, tags: RecordStream, endpoint: tuple[str, int]) -> None:
        """`endpoint` is where the server was connected to."""
        self.socket = connection
        self.socket.settimeout(SECONDS)
        self.endpoint = endpoint
        self.tags = tags
        self.sent = bytearray()
        self.heard_greeting = b""

    def send(self, data: bytes) -> None:
        self.sent += data
        self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        """Return `count` bytes, or fewer if the other end closes or resets the connection first."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while len(data) < count and (part := self.socket.recv(count - len(data))):
                data += part
        return data

    def greet(self) -> None:
        """Greet, in the order of who connected and who was connected to, and have tags from now on."""
        if self.tags.is_server:
            self.heard_greeting = self.receive(TRAILER_BYTES)
        self.send(self.tags.greeting)
        if not self.tags.is_server:
            self.heard_greeting = self.receive(TRAILER_BYTES)
        self.tags.begin(self.heard_greeting, self.endpoint)

    def raw_record(self) -> bytes:
        head = self.receive(TRAILER_BYTES)
        return head + self.receive(int.from_bytes(head[8:12]))

    def record(self) -> bytes:
        """The messages of the next record, which has to be right."""
        return self.tags.opened(self.raw_record())

    def is_ended(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


class Requester:
    """A listener that a responder is led to; a thread talks on the first connection."""

    def __init__(self, talk: Callable[[KeyedPeer], None], **key: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SECONDS)
        self.endpoint = self.listener.getsockname()
        self._talk = talk
        self._key = {"secret": SECRET, "key_id": KEY_ID, **key}
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        secret, key_id = self._key["secret"], self._key["key_id"]
        tags = RecordStream(
            secret, key_id, "", key_check(SECRET), is_server=True, kind=RecordStream.RESPONSES
        )
        try:
            connection, _ = self.listener.accept()
            with connection:
                self._talk(KeyedPeer(connection, tags, self.endpoint))
        except Exception as error:  # shown by the test's thread
            self.error = error

    def join(self) -> None:
        self.thread.join(SECONDS)
        self.listener.close()
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
