"""Subscription: the engine's part of a receiver, to which topic resolution maps sources."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.core_address import core_address
from umstack._engine.core_context import CoreContext
from umstack._engine.endpoint import Endpoint
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.row_sources import RowOwner
from umstack._engine.transport_address import LbtipcAddress
from umstack.config import ReceiverOptions

_ENDED_TOGETHER = 64
POSITIONS_MAX = 1024
"""Positions kept of sources whose logs ended."""


class MappingRequest(NamedTuple):
    """A source to be mapped to a receiver: a topic of a session."""

    subscription: Subscription
    session: Any
    """A um_receiver_session_config."""
    topic_index: int
    source: str
    """Its name."""
    request_port: Endpoint | None = None
    """Where it serves retained messages."""
    start_sqn: int | None = None
    """Messages before it were consumed."""
    log: LbtipcAddress | None = None
    """The log of a driver, if the source reaches the receiver through one.

    It is resumed where its last log ended. The driver that wrote that log, or its session with the source, has ended
    since, so the core does not know that both logs have the same source.
    """


class LateMapping(NamedTuple):
    """The past messages to fetch first from a newly mapped source."""

    endpoint: Endpoint
    epoch: int
    resume_sqn: int | None
    """The next expected sequence number of a rediscovered source. None for a new source."""


class Mapped(NamedTuple):
    """The outcome of a request."""

    request: MappingRequest
    result: int
    """The core's."""
    late: LateMapping | None = None
    """The messages to fetch first, if any."""


class Subscription:
    """The memory of a receiver in the core, which writes into its queue. It is freed when nothing refers to it."""

    __slots__ = (
        "_is_relayed",
        "_logs",
        "_mapped",
        "_owner",
        "_positions",
        "_stored_positions",
        "_takes_group",
        "handle",
        "options",
        "queue",
        "topic",
    )

    def __init__(
        self,
        core: CoreContext,
        queue: QueueMemory,
        topic: str,
        options: ReceiverOptions,
        takes_group: Callable[[str], bool] | None,
        *,
        is_relayed: bool = False,
    ) -> None:
        """Open it. `takes_group` gets a source's multicast group and returns whether to receive that source.

        `is_relayed`: a relay moves its rows. Hot failover numbers stay with their messages, and receivers behind the
        relay fetch what a source sent before its session and between two sessions.
        """
        self._is_relayed = is_relayed
        self._owner = RowOwner(closed=True)
        self.topic = topic
        self.options = options
        self._takes_group = takes_group
        self._mapped: dict[str, Endpoint | None] = {}
        """Its sources, and where each serves retained messages."""
        self._logs: dict[str, LbtipcAddress] = {}
        """By source, the log of a driver from which it is received."""
        self._stored_positions: dict[str, int] = {}
        """Of sources with Stores that ended, the number behind the last message delivered."""
        self._positions: dict[str, int] = {}
        """Of sources whose log ended, the position at which each is resumed when it is mapped again."""
        self.queue = queue
        """The queue of the receiver, or the event queue that it delivers into."""
        self.handle: Any = None
        config = ffi.new("um_receiver_config *")
        config.ordered_delivery = -1 if queue.is_hot_failover else options.ordered_delivery
        config.map_entries_max = core.options.delivery_control_maximum_total_map_entries
        config.burst_loss_max = options.delivery_control_maximum_burst_loss
        config.loss_check_interval_ns = options.delivery_control_loss_check_interval_ns
        config.is_hot_failover = queue.is_hot_failover or is_relayed
        config.keeps_properties = queue.keeps_properties
        config.source_notification = options.source_notification
        config.use_otr = options.use_otr == 1
        config.otr_initial_delay_ns = options.otr_request_initial_delay_ns
        config.otr_caching_threshold = options.otr_message_caching_threshold
        handle = ffi.new("um_subscription **")
        core.check(lib.um_subscription_open(queue.handle, config, handle), f"receiver {topic!r}")
        self.handle = handle[0]
        self._owner.closed = False

    @property
    def closed(self) -> bool:
        """True before it is open in the core, and after close()."""
        return self._owner.closed

    def wants(self, topic: str, group: str | None) -> bool:
        """Return true if it receives sources of this topic, on this multicast group if there is one."""
        if self.closed or topic != self.topic:
            return False
        return self._takes_group is None or group is None or self._takes_group(group)

    def report_no_source(self, queries: int) -> None:
        """Report the number of unanswered queries for sources of the topic."""
        if not self.closed:
            self.queue.report_no_source(self.topic, queries)

    def report_driver_lost(self) -> None:
        """Report that the driver through which the topic was received has ended."""
        if not self.closed:
            self.queue.report_driver_lost(self.topic)

    def report_event(self, source: str, kind: int) -> None:
        """Report an event of a source, as a row of this kind."""
        if not self.closed:
            self.queue.report_event(kind, self.topic, source)

    def log_of(self, source: str) -> LbtipcAddress | None:
        """Return the log from which the source is received, until its last row is delivered."""
        if not self.closed:
            self.retire_ended()
        return self._logs.get(source)

    def prepare(self, mapping: Any, request: MappingRequest) -> bool:
        """Fill a um_mapping. Returns true if the source was mapped before."""
        self.retire_ended()  # a former log of the source leaves its position
        source, start_sqn = request.source, request.start_sqn
        was_mapped = source in self._mapped
        if request.log is not None:
            self._logs[source] = request.log
        if start_sqn is not None:
            self._stored_positions[source] = start_sqn
            if len(self._stored_positions) > POSITIONS_MAX:
                del self._stored_positions[next(iter(self._stored_positions))]
        else:
            start_sqn = self._positions.pop(source, None)
        mapping.subscription, mapping.session = self.handle, request.session
        mapping.topic_index = request.topic_index
        if start_sqn is not None:
            mapping.has_start, mapping.start_sqn = True, start_sqn
        if request.request_port is not None:
            mapping.is_retaining, mapping.is_relayed = True, self._is_relayed
            mapping.request_port = core_address(request.request_port)
            mapping.joins_late = self.options.use_late_join
            mapping.caching_proximity = self.options.retransmit_message_caching_proximity
        mapping.source = self._number(source, request.request_port)
        return was_mapped

    def conclude(self, mapping: Any, request: MappingRequest, was_mapped: bool) -> Mapped:
        """Note the outcome of a prepared mapping, and return it."""
        result = int(mapping.result)
        self._note_mapped(request.source, mapping.source, result, was_mapped)
        if result != 0 and request.log is not None:
            self._logs.pop(request.source, None)
        if request.request_port is None or result != 0 or not mapping.is_fetched:
            return Mapped(request, result)
        resume_sqn = mapping.resume_sqn if mapping.is_resumed else None
        return Mapped(request, result, LateMapping(request.request_port, mapping.epoch, resume_sqn))

    def unmap(self, session: Any, topic_index: int, source: str) -> int | None:
        """Stop receiving a source that continues in another session.

        Returns:
            The number of the first message that was not delivered; None if it was not mapped at a number.
        """
        if self.closed:
            return None
        found = ffi.new("bool *"), ffi.new("uint32_t *")
        result = lib.um_subscription_unmap(self.handle, session, topic_index, *found)
        self.retire_ended()
        if result == 0:
            former = self._stored_positions.pop(source, None)
            return int(found[1][0]) if found[0][0] else former
        return self._stored_positions.pop(source, None)

    def note_stored(self, session: Any, topic_index: int, high_sqn: int) -> None:
        """Recover the messages of a source up to this number, which Stores have."""
        if not self.closed:
            lib.um_subscription_note_stored(self.handle, session, topic_index, high_sqn)

    def _number(self, source: str, request_port: Endpoint | None) -> int:
        """Return the number of a source that is about to be mapped; the core may count it before its call returns."""
        self._mapped.setdefault(source, request_port)
        return self.queue.sources.number(self.topic, source, self._owner)

    def _note_mapped(self, source: str, number: int, result: int, was_mapped: bool) -> None:
        """Undo _number() for a source that the core did not accept. One that was mapped before keeps its number."""
        if result != 0:
            self.queue.sources.retire(number)
        if result != 0 and not (result == -errno.EEXIST and was_mapped):
            self._mapped.pop(source, None)

    def retire_ended(self) -> None:
        """Let the numbers of sources that have ended be used again."""
        ended = ffi.new("um_ended_source[]", _ENDED_TOGETHER)
        while count := lib.um_subscription_take_ended(self.handle, ended, _ENDED_TOGETHER):
            for one in ended[0:count]:
                name = self.queue.sources.retire(one.source, one.rows)
                self._mapped.pop(name, None)
                is_log = self._logs.pop(name, None) is not None
                if name in self._stored_positions and one.has_position:
                    self._stored_positions[name] = one.next_sqn
                if is_log and one.has_position:
                    self._positions[name] = one.next_sqn
                    if len(self._positions) > POSITIONS_MAX:
                        del self._positions[next(iter(self._positions))]

    def is_mapped(self, source: str) -> bool:
        """Return true if the source is mapped, or ended since the last was mapped. Any thread."""
        return source in self._mapped

    def request_port_of(self, source: str) -> Endpoint | None:
        """Return where a source serves retained messages; None if it offers none, or is not mapped. Any thread."""
        return self._mapped.get(source)

    def connected(self) -> int:
        """Return the number of its sources whose messages from now on are received, or reported as lost."""
        return 0 if self.closed else int(lib.um_subscription_connected(self.handle))

    @property
    def sources(self) -> list[str]:
        """The names of its sources. Any thread."""
        return sorted(self._mapped.copy())

    @property
    def direct_count(self) -> int:
        """The number of its sources that it does not receive from a log of a driver. Any thread."""
        logs = self._logs.copy()
        return sum(name not in logs for name in self._mapped.copy())

    @property
    def transports(self) -> list[str]:
        """The names of the sessions that its sources are in. Any thread."""
        return sorted({source.rpartition("[")[0] for source in self._mapped.copy()})

    def close(self) -> None:
        """Stop receiving."""
        self._owner.closed = True
        lib.um_subscription_close(self.handle)
        self.retire_ended()

    def disown(self) -> None:
        """Leave the memory alone, in a forked child."""
        self._owner.closed = True
        self.handle = None

    def __del__(self) -> None:
        if self.handle is not None:
            lib.um_subscription_free(self.handle)


def map_sources(requests: Sequence[MappingRequest]) -> list[Mapped]:
    """Map sources to receivers of one context at once: every message comes to all of them or to none.

    Returns:
        The outcome of each request whose receiver is open.
    """
    wanted = [request for request in requests if not request.subscription.closed]
    mappings = ffi.new("um_mapping[]", len(wanted))
    were_mapped = [
        request.subscription.prepare(mapping, request)
        for mapping, request in zip(mappings, wanted, strict=True)
    ]
    lib.um_subscriptions_map(mappings, len(wanted))
    return [
        request.subscription.conclude(mapping, request, was_mapped)
        for mapping, request, was_mapped in zip(mappings, wanted, were_mapped, strict=True)
    ]
