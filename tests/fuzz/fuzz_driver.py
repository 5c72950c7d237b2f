"""Messages of applications to the driver, over its control sockets: each is answered, or ends its own connection. An
honest application beside them is served, and no application gets the log of a topic that it does not receive.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from json_input import changed_json

from umstack._engine.host_identity import host_id
from umstack.config import Config
from umstack.driver.protocol import MESSAGE_MAX_BYTES, VERSION_HIGH, VERSION_LOW, SharedLog
from umstack.driving import driver
from umstack.driving.topics import SharedSource, key_of
from umstack.persistence.advertised import Stored
from umstack.resolution.topic_name import encode_topic_name
from umstack.store.wire import STORES_MAXIMUM
from umstack_xdp.broker_policy import Policy

INSTRUMENTED = ("umstack.driver.protocol", "umstack.driving.driver")
_LIMIT = 1
_APPLICATIONS = 3
_HONEST = 0
_MESSAGES_MAX = 16
_LOG = {"session_id": 7, "transport_id": 20000, "topic_index": 1, "key": 2**63}
_STORED = {"stores": [["10.0.0.1", 14567], ["10.0.0.2", 14567]], "fragment_bytes": 1344}
_ATTACH = {"do": "attach", "low": VERSION_LOW, "high": VERSION_HIGH, "host": host_id()}
_MESSAGES = [
    {"do": "receive", "request": 1, "id": 1, "topic": "a", "options": {}},
    {"do": "receive", "request": 2, "id": 2, "topic": "b", "options": {"ordered_delivery": "0"}},
    {"do": "receive", "request": 11, "id": 4, "topic": "a", "options": {}, "cut_off": True},
    {"do": "nak_cutoff", "request": 12, "id": 1, "enabled": True},
    {"do": "nak_cutoff", "request": 13, "id": 1, "enabled": False},
    {"do": "unconnected", "request": 10, "id": 1},
    {"do": "publish", "request": 3, "id": 3, "topic": "a", "options": {"transport": "lbtrm"}, **_LOG},
    {"do": "publish", "request": 4, "id": 4, "topic": "honest", "options": {}, **_LOG},
    {"do": "publish", "request": 14, "id": 5, "topic": "a", "options": {}, **_LOG, **_STORED},
    {"do": "state", "request": 5, "id": 3},
    {"do": "events", "request": 8, "id": 3, "after": 0},
    {"do": "end", "request": 6, "id": 1},
    {"do": "end", "request": 7, "id": 3},
    _ATTACH,
]


class _Received:
    """A topic that the driver receives, without a network."""

    def __init__(
        self, _context: Any, topic: str, options: Mapping[str, str], _announce: Any, _on_event: Any
    ) -> None:
        encode_topic_name(topic)
        Config().receiver_options(**cast("Any", options))
        self.topic, self.key, self.is_closed = topic, key_of(topic, options), False
        self.is_cut_off = False

    def start(self) -> None:
        """Receive nothing."""

    def nak_cutoff(self, is_cut_off: bool) -> None:
        """Note whether NAKs are sent."""
        self.is_cut_off = is_cut_off

    def unconnected(self) -> int:
        """Return that the source accepts the driver."""
        return 0

    def sources(self) -> list[SharedSource]:
        """Return one source, whose name is that of the topic."""
        return [SharedSource(self.topic, SharedLog(1, 1, 1, 1))]

    def close(self) -> None:
        """Note the end."""
        assert not self.is_closed
        self.is_closed = True


class _Published:
    """A source of an application, without a network."""

    transport, network_topic_index, message_max_bytes = "LBTRM:a", 1, 1000
    reached, naks, is_idle, is_drained = 0, 0, True, True

    def __init__(
        self,
        _context: Any,
        topic: str,
        options: Mapping[str, str],
        log: SharedLog,
        stored: Stored | None,
    ) -> None:
        encode_topic_name(topic)
        Config().source_options(**cast("Any", options))
        assert stored is None or 0 < len(stored.stores) <= STORES_MAXIMUM
        self.topic, self.shared = topic, SharedSource(topic, log, stored.stores if stored else ())
        self.ended = SimpleNamespace(is_set=lambda: True)

    def state(self) -> dict[str, Any]:
        """Return a state."""
        return {"attached": True}

    def events(self, after: int) -> tuple[list[Any], int]:
        """Return no events."""
        return [], after

    def set_local_receivers(self, receivers: int, applications: int) -> None:
        """Check the counts."""
        assert applications <= receivers <= _LIMIT * _APPLICATIONS

    def close(self) -> None:
        """Do nothing."""


cast("Any", driver).ReceivedTopic = _Received
cast("Any", driver).PublishedTopic = _Published
cast("Any", driver)._REPAIR_SECONDS = 0.0  # there is no network to repair anything on


class _World:
    """A driver, and the applications' ends of its connections."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("")  # an abstract name that the kernel chooses
        self.listener.listen()
        keyring = SimpleNamespace(number_of=lambda topic: int(topic == "a"))
        context = SimpleNamespace(
            interface=SimpleNamespace(name="eth1"), link="socket", engine=SimpleNamespace(keyring=keyring)
        )
        limits = driver.DriverLimits(_LIMIT, _LIMIT)
        self.driver = driver.Driver(
            cast("Any", context), self.listener, Policy(), limits, lambda _event: None
        )
        self.topics: list[set[str]] = [set() for _ in range(_APPLICATIONS)]
        self.ends = [self.connect(number) for number in range(_APPLICATIONS)]

    def connect(self, number: int) -> socket.socket:
        """Attach an application."""
        self.topics[number] = set()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.setblocking(False)
        end.connect(self.listener.getsockname())
        self.driver._accept()
        end.send(json.dumps(_ATTACH).encode())
        self.serve()
        assert self.read(end)[0]["version"] == VERSION_HIGH
        return end

    def serve(self) -> None:
        """Let the driver do what its thread does after each event."""
        for application in list(self.driver._applications):
            self.driver._serve_one(application)
            assert len(application.receivers) <= _LIMIT
            assert len(application.sources) <= _LIMIT
        self.driver._drop_gone()
        self.driver._finish_ending()
        for topic in self.driver._topics.values():
            wants = self.driver._receivers_of(topic)
            assert topic.is_cut_off == all(number in one.cut_off for one, number in wants)

    @staticmethod
    def read(end: socket.socket) -> list[dict[str, Any]]:
        """Return the messages that the driver has sent; an empty one is the end."""
        found = []
        while True:
            try:
                data = end.recv(MESSAGE_MAX_BYTES + 1)
            except OSError:
                return found
            assert len(data) <= MESSAGE_MAX_BYTES
            found.append(json.loads(data) if data else {})
            if not data:
                return found

    def send(self, number: int, data: bytes) -> None:
        """Send a message, and read everything that it brings; a connection that was ended is made again."""
        end = self.ends[number]
        try:
            asked = json.loads(data)
        except (ValueError, RecursionError):
            asked = None
        if isinstance(asked, dict) and asked.get("do") == "receive" and isinstance(asked.get("topic"), str):
            self.topics[number].add(asked["topic"])
        end.send(data)
        self.serve()
        answers = self.read(end)
        assert answers
        for answer in answers:
            assert answer.get("do") != "source" or answer["name"] in self.topics[number]
            assert type(answer.get("reply", 0)) is int
        if not answers[-1]:
            end.close()
            self.ends[number] = self.connect(number)

    def check_honest(self) -> None:
        """The honest application is served, and has got nothing else."""
        end = self.ends[_HONEST]
        assert not self.read(end)
        end.send(json.dumps({"do": "state", "request": 9, "id": 1}).encode())
        self.serve()
        (answer,) = self.read(end)
        assert answer["reply"] == 9
        assert answer["error"]

    def close(self) -> None:
        """End everything; nothing of the applications is left."""
        for end in self.ends:
            end.close()
        self.serve()
        assert not self.driver._applications
        assert not self.driver._topics
        assert not self.driver._ending
        self.driver.close()
        self.listener.close()


def one_input(data: bytes) -> None:
    """Send messages, each of which begins with its application and its length."""
    world = _World()
    for _ in range(_MESSAGES_MAX):
        if len(data) < 2:
            break
        number, length = 1 + data[0] % (_APPLICATIONS - 1), data[1] % 64
        message = changed_json(data[2 : 2 + length], _MESSAGES)[: MESSAGE_MAX_BYTES + 1]
        data = data[2 + length :]
        if message:
            world.send(number, message)
    world.check_honest()
    world.close()
