"""Resolver: topic resolution of a context as one service, independent of the thread that runs it."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from umstack._engine.transport_address import TransportAddress, transport_name
from umstack.config import ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.key_file import Key
from umstack.resolution.agent import ResolutionAgent, ResolutionInterface
from umstack.resolution.cache import KnownSource
from umstack.resolution.codec import WireOption
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.topic_name import encode_topic_name
from umstack_xdp.closing import Closing

_NAMES_REPORTED = 100
WITHDRAWN_MAX = 1024
"""Far more than end while their last advertisements are on their way back."""

Command = Callable[[int], None]
"""A call on the agent, with the monotonic time in nanoseconds."""


class Resolver(Closing):
    """Advertises the sources of a context and finds sources for its receivers; owns the agent.

    Subclasses decide which thread uses the agent: `_submit` gets every command for it.
    """

    def __init__(self, agent: ResolutionAgent) -> None:
        self._agent = agent
        self._withdrawn: dict[KnownSource, None] = {}
        self._withdrawing = threading.Lock()

    @abstractmethod
    def _submit(self, command: Command) -> None:
        """Run a command on the agent's thread, now or soon. Raises Closed once the service is closed."""

    def advertise(
        self,
        topic: str,
        index: int,
        address: TransportAddress,
        options: SourceOptions,
        topic_options: tuple[WireOption, ...] = (),
    ) -> None:
        """Announce a source, whose advertisements will contain `topic_options`."""
        encode_topic_name(topic)
        self._submit(
            lambda now_ns: self._agent.advertise(topic, index, address, options, now_ns, topic_options)
        )

    def topic_options(self, topic: str, index: int, address: TransportAddress) -> tuple[WireOption, ...]:
        """Return the options of a source's newest advertisement. Any thread."""
        return self._agent.machine.topic_options(topic, index, address)

    def withdraw(self, topic: str, index: int, address: TransportAddress) -> None:
        """Stop announcing a source. Before its session ends, or receivers of this context may still find it."""
        with self._withdrawing:
            self._withdrawn[KnownSource(topic, index, address)] = None
            if len(self._withdrawn) > WITHDRAWN_MAX:
                del self._withdrawn[next(iter(self._withdrawn))]
        self._submit(lambda now_ns: self._agent.withdraw(topic, index, address, now_ns))

    def has_withdrawn(self, topic: str, index: int, address: TransportAddress) -> bool:
        """Return true for a source of this context that has ended a short time ago. The network brings its
        advertisements back to this context, so topic resolution knows it until the final one arrives."""
        return KnownSource(topic, index, address) in self._withdrawn

    def query(self, topic: str, options: ReceiverOptions) -> None:
        """Look for sources of a topic; known ones are reported immediately or soon, on the agent's thread."""
        encode_topic_name(topic)
        self._submit(lambda now_ns: self._agent.query(topic, options, now_ns))

    def stop_query(self, topic: str) -> None:
        """Remove one receiver of the topic."""
        self._submit(lambda _now_ns: self._agent.stop_query(topic))

    def match(self, key: int, pattern: TopicPattern, options: WildcardReceiverOptions) -> None:
        """Look for topics that match a pattern; known ones are reported immediately or soon, on the agent's thread."""
        self._submit(lambda now_ns: self._agent.match(key, pattern, options, now_ns))

    def stop_matching(self, key: int) -> None:
        """Remove a wildcard receiver that has ended."""
        self._submit(lambda _now_ns: self._agent.stop_matching(key))

    def forget_sessions(self, ended: Collection[TransportAddress] | None) -> None:
        """Forget ended sessions (None: all) so that their sources are reported again when advertised again."""
        self._submit(lambda now_ns: self._agent.forget_sessions(ended, now_ns))

    def request_resolution(self) -> None:
        """Request that all processes advertise and query again."""
        self._submit(self._agent.request_resolution)

    def set_mtu(self, mtu_bytes: int) -> None:
        """Follow the interface's MTU."""
        self._submit(lambda _now_ns: self._agent.set_mtu(mtu_bytes))

    def move_sources(self, moved: Mapping[TransportAddress, TransportAddress]) -> None:
        """Announce the sources of sessions whose address has changed at the new one, by the former address."""
        self._submit(lambda now_ns: self._agent.move_sources(moved, now_ns))

    def follow_interface(self, interface: ResolutionInterface) -> None:
        """Follow an interface that was made again, renamed or got another address."""
        self._submit(lambda _now_ns: self._agent.follow_interface(interface))

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Replace the keys. Allowed only if there were keys at the start."""
        self._submit(lambda _now_ns: self._agent.set_keys(keys))

    def topics(self) -> list[str]:
        """Return the topics of received advertisements. Any thread."""
        return self._agent.topics()

    def sources_of(self, topic: str) -> list[str]:
        """Return the names of the sources of a topic, from received advertisements. Any thread."""
        return [
            f"{transport_name(source.address)}[{source.topic_index}]"
            for source in self._agent.machine.sources_of(topic)
        ]

    def stats(self) -> dict[str, int]:
        """Return the tr_* counters by name. Any thread."""
        return self._agent.stats()

    def report(self) -> dict[str, Any]:
        """Return the resolution domain, and the first hundred names each of advertised and queried topics; the counters
        have the totals. Any thread."""
        interest = {name: topics[:_NAMES_REPORTED] for name, topics in self._agent.machine.interest().items()}
        return {**self._agent.domain(time.monotonic_ns()), **interest}

    def process(self, now_ns: int) -> None:
        """Run the agent on the caller's thread; does nothing if the agent has its own thread."""


class DonatedResolver(Resolver):
    """In sequential mode, the calling thread runs the agent, one thread at a time."""

    def __init__(self, agent: ResolutionAgent) -> None:
        """Use an agent, which close() closes."""
        super().__init__(agent)
        self._has_more = False

    def _submit(self, command: Command) -> None:
        command(time.monotonic_ns())

    def fileno(self) -> int:
        """Return a descriptor that is readable while datagrams wait."""
        return self._agent.fileno()

    def next_deadline_ns(self) -> int | None:
        """Return when process() is due without another datagram; None: never."""
        return 0 if self._has_more else self._agent.next_deadline_ns()

    def process(self, now_ns: int) -> None:
        """Handle received datagrams and send due ones."""
        self._has_more = self._agent.process(now_ns)

    def close(self) -> None:
        """Close the agent."""
        self._agent.close()
