"""Resolver: topic resolution of a context as one service, whichever thread runs it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from umstack._engine.transport_address import TransportAddress
from umstack.config import ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.key_file import Key
from umstack.resolution.agent import ResolutionAgent
from umstack.resolution.codec import WireOption
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.topic_name import encode_topic_name
from xdp.closing import Closing

_NAMES_REPORTED = 100

Command = Callable[[int], None]
"""Work on the agent, at a time of the monotonic clock in nanoseconds."""


class Resolver(Closing):
    """Advertises the sources of a context and finds those of its receivers; owns the agent.

    Subclasses decide which thread works on the agent: `_submit` gets every command to it.
    """

    def __init__(self, agent: ResolutionAgent) -> None:
        self._agent = agent

    @abstractmethod
    def _submit(self, command: Command) -> None:
        """Run a command on the agent's thread, now or soon; Closed once the service is closed."""

    def advertise(
        self,
        topic: str,
        index: int,
        address: TransportAddress,
        options: SourceOptions,
        topic_options: tuple[WireOption, ...] = (),
    ) -> None:
        """Announce a source; `topic_options` go into its advertisements."""
        encode_topic_name(topic)
        self._submit(
            lambda now_ns: self._agent.advertise(topic, index, address, options, now_ns, topic_options)
        )

    def topic_options(self, topic: str, index: int, address: TransportAddress) -> tuple[WireOption, ...]:
        """The options of a source's newest advertisement. On the agent's thread."""
        return self._agent.machine.topic_options(topic, index, address)

    def withdraw(self, topic: str, index: int, address: TransportAddress) -> None:
        """Stop announcing a source."""
        self._submit(lambda now_ns: self._agent.withdraw(topic, index, address, now_ns))

    def query(self, topic: str, options: ReceiverOptions) -> None:
        """Look for sources of a topic; known ones are reported at once or soon, on the agent's thread."""
        encode_topic_name(topic)
        self._submit(lambda now_ns: self._agent.query(topic, options, now_ns))

    def stop_query(self, topic: str) -> None:
        """Count one receiver of the topic less."""
        self._submit(lambda _now_ns: self._agent.stop_query(topic))

    def match(self, key: int, pattern: TopicPattern, options: WildcardReceiverOptions) -> None:
        """Look for topics that a pattern matches; known ones are reported at once or soon, on the agent's thread."""
        self._submit(lambda now_ns: self._agent.match(key, pattern, options, now_ns))

    def stop_matching(self, key: int) -> None:
        """A wildcard receiver has ended."""
        self._submit(lambda _now_ns: self._agent.stop_matching(key))

    def forget_sessions(self, ended: Collection[TransportAddress] | None) -> None:
        """Sessions have ended, None: any: their sources are reported again when they are advertised again."""
        self._submit(lambda now_ns: self._agent.forget_sessions(ended, now_ns))

    def request_resolution(self) -> None:
        """Request that every process advertises and queries again."""
        self._submit(self._agent.request_resolution)

    def set_mtu(self, mtu_bytes: int) -> None:
        """Follow the interface's MTU."""
        self._submit(lambda _now_ns: self._agent.set_mtu(mtu_bytes))

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Replace the keys, if there were keys at the start."""
        self._submit(lambda _now_ns: self._agent.set_keys(keys))

    def topics(self) -> list[str]:
        """Topics of which an advertisement was received. Any thread may call this."""
        return self._agent.topics()

    def stats(self) -> dict[str, int]:
        """The tr_* counters by name. Any thread may call this."""
        return self._agent.stats()

    def report(self) -> dict[str, Any]:
        """The resolution domain, and what this context advertises and looks for: of each the first hundred names, the
        counters have the numbers. Any thread may call this."""
        interest = {name: topics[:_NAMES_REPORTED] for name, topics in self._agent.machine.interest().items()}
        return {**self._agent.domain(time.monotonic_ns()), **interest}

    def process(self, now_ns: int) -> None:
        """Run the agent on the caller's thread; does nothing if the agent has its own thread."""


class DonatedResolver(Resolver):
    """Sequential mode: the agent is worked on by the thread that calls, one at a time."""

    def _submit(self, command: Command) -> None:
        command(time.monotonic_ns())

    def process(self, now_ns: int) -> None:
        """Handle received datagrams and send due ones."""
        self._agent.process(now_ns)

    def close(self) -> None:
        """Close the agent."""
        self._agent.close()
