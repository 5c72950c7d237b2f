"""QueueMemory: the core's event queue behind receivers, event queues and the batches read from them."""

from __future__ import annotations

import logging

from umstack._core import ffi, lib
from umstack._engine.core_context import CoreContext
from umstack._engine.row_sources import RowSources
from umstack.config import EventQueueOptions, ReceiverOptions
from umstack.errors import OptionError
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords

_records = RepeatedRecords(logging.getLogger("umstack.receiver"))
_BLOCK_ROWS = 8192


class QueueMemory:
    """The memory of a queue in the core. Its receivers, and batches that refer to it, keep it alive."""

    __slots__ = (
        "_joined",
        "_message_option_bytes",
        "freed",
        "handle",
        "is_conflating",
        "is_hot_failover",
        "keeps_properties",
        "message_max_bytes",
        "name",
        "responder",
        "sources",
    )

    def __init__(
        self,
        core: CoreContext,
        options: ReceiverOptions,
        name: str,
        watched: EventQueueOptions | None = None,
    ) -> None:
        """Open a queue of the size in these options. `name` appears in errors and the statistics.

        `watched` has what an event queue warns of and counts.
        """
        self.name = name
        self.freed = True
        self.responder = core.responder
        """Sends responses to the requests in the queue."""
        self._message_option_bytes: int = options.receiver_maximum_message_length_bytes
        self.message_max_bytes: int = max(self._message_option_bytes, lib.UM_QUEUE_MESSAGE_BYTES_MIN)
        config = ffi.new("um_event_queue_config *")
        config.block_count = min(max(options.receiver_queue_block_count, 4), lib.UM_QUEUE_BLOCKS_MAX)
        config.block_rows = _BLOCK_ROWS
        config.block_bytes = options.receiver_queue_block_length_bytes
        config.message_max_bytes = self.message_max_bytes
        self.is_conflating = options.receiver_full_queue == "conflate"
        """True if a read returns the newest message per source and key only."""
        config.conflates = self.is_conflating
        config.key_bytes = options.receiver_conflation_key_length_bytes
        is_holding = options.receiver_full_queue == "hold"
        config.hold_ns = options.receiver_full_queue_hold_interval_ns if is_holding else 0
        if watched is not None:
            config.notes_age = watched.queue_age_enabled
            config.size_warning = watched.queue_size_warning
            config.delay_warning_ns = watched.queue_delay_warning_ns
        handle = ffi.new("um_event_queue **")
        core.check(lib.um_event_queue_open(core.handle, config, handle), name)
        self.handle = handle[0]
        self.freed = False
        self.sources = RowSources()
        self.sources.recycles = not self.is_conflating
        self.is_hot_failover = False
        """True if all receivers of the queue, and of joined queues, share one stream of hot failover numbers."""
        self.keeps_properties = False
        """True if message properties stay in the payloads: for a Store, which keeps messages as they came."""
        self._joined: list[QueueMemory] = []

    def make_hot_failover(self, core: CoreContext, options: ReceiverOptions) -> None:
        """Treat its rows as one stream of hot failover numbers. Called before anything delivers into the queue."""
        config = ffi.new("um_hot_failover_config *")
        config.capacity = 1 << (options.hf_maximum_waiting_messages - 1).bit_length()
        config.max_delay_ns = options.hf_maximum_delay_ns
        config.delivers_optional = options.hf_optional_messages
        config.delivers_duplicates = options.hf_duplicate_delivery
        core.check(lib.um_event_queue_hot_failover(self.handle, config), self.name)
        self.is_hot_failover = True
        self.sources.recycles = False

    def join(self, core: CoreContext, other: QueueMemory) -> None:
        """Add the messages of another queue to that stream. This queue keeps the other one alive."""
        core.check(lib.um_event_queue_join(self.handle, other.handle), self.name)
        other.is_hot_failover = True
        other.sources = self.sources
        self._joined.append(other)

    def check_shareable(self, options: ReceiverOptions, name: str) -> None:
        """Raise OptionError if a receiver with these options cannot deliver into this queue."""
        wanted = options.receiver_maximum_message_length_bytes
        if wanted != self._message_option_bytes:
            raise OptionError(
                f"{name}: receiver_maximum_message_length is {wanted}, "
                f"that of its event queue {self._message_option_bytes}",
                hint="a shared queue has one: give the option to event_queue() and leave it out here",
            )
        if options.receiver_full_queue == "conflate" and not self.is_conflating:
            raise OptionError(
                f"{name}: its event queue does not conflate",
                hint="give conflate=True to event_queue()",
            )
        if self.is_conflating and options.ordered_delivery == 0:
            raise OptionError(
                f"{name}: ordered_delivery 0 delivers fragments, and its event queue conflates whole messages",
                hint="set ordered_delivery to 1 or -1",
            )

    def report_no_source(self, topic: str, queries: int) -> None:
        """Append a NoSource event. If the queue is full, it is logged instead."""
        if not self._append_event(lib.UM_ROW_NO_SOURCE, topic, "", queries):
            _records.write(
                topic, logging.WARNING, "%s has no source after %d queries", displayed(topic), queries
            )

    def report_interface(self, topic: str, interface: str, change_number: int) -> None:
        """Append an InterfaceChanged event. If the queue is full, only the context's record reports the change."""
        self._append_event(lib.UM_ROW_INTERFACE_CHANGED, topic, interface, change_number)

    def report_event(self, kind: int, topic: str, source: str) -> None:
        """Append an event of a source. If the queue is full, it is dropped."""
        self._append_event(kind, topic, source, 0)

    def _append_event(self, kind: int, topic: str, source: str, sequence_number: int) -> bool:
        """Append an event. Returns false if the queue is full or closed."""
        number = self.sources.number(topic, source)
        is_appended = lib.um_event_queue_append_event(self.handle, kind, sequence_number, number)
        self.sources.retire(number, lib.um_event_queue_appended_rows(self.handle) if is_appended else 0)
        return bool(is_appended)

    def report_driver_lost(self, topic: str) -> None:
        """Append a DriverLost event. If the queue is full, it is logged instead."""
        if not self._append_event(lib.UM_ROW_DRIVER_LOST, topic, "", 0):
            _records.write(
                topic, logging.ERROR, "%s is not received any more: its driver ended", displayed(topic)
            )

    def recycle_sources(self) -> None:
        """Make numbers of sources available whose rows were all read. Called by the reader of the queue."""
        self.sources.recycle(lib.um_event_queue_taken_rows(self.handle))

    def close(self) -> None:
        """Accept no more rows. Memory that batches refer to stays valid."""
        lib.um_event_queue_close(self.handle)

    def disown(self) -> None:
        """Leave the memory alone, in a forked child. Batches read earlier stay readable."""
        self.freed = True

    def __del__(self) -> None:
        if not self.freed:
            self.freed = True
            lib.um_event_queue_free(self.handle)
