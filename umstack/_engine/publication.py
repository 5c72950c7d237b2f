"""Publication: the engine's part of a source."""

from __future__ import annotations

from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_context import CoreContext
from umstack._engine.sessions import SourceSession
from umstack.config import SourceOptions

_EXPLICIT_BATCH_BYTES = 262144


class Publication:
    """The memory of a source in the core. It is unmapped when nothing refers to it, so no thread can be using it."""

    __slots__ = ("fragment_bytes", "handle", "session", "topic", "topic_index")

    def __init__(
        self,
        core: CoreContext,
        session: SourceSession,
        topic: str,
        topic_index: int,
        options: SourceOptions,
        fragment_bytes: int = 0,
    ) -> None:
        """Open it on a session that the caller owns.

        `fragment_bytes` is the length of its fragments, whatever the path carries; 0: as long as the path carries.
        """
        self.topic = topic
        self.topic_index = topic_index
        self.session = session
        self.fragment_bytes = fragment_bytes
        """Length of its fragments; 0: as long as the path carries."""
        self.handle: Any = None
        config = ffi.new("um_source_config *")
        config.topic_index = topic_index
        config.initial_sqn = options.initial_sequence_number
        config.tsni_interval_ns = options.transport_topic_sequence_number_info_interval_ns
        config.tsni_threshold_ns = options.transport_topic_sequence_number_info_active_threshold_ns
        config.explicit_capacity = _EXPLICIT_BATCH_BYTES
        config.has_send_time = options.send_timestamps
        config.fragment_bytes = self.fragment_bytes
        handle = ffi.new("um_publication **")
        core.check(lib.um_publication_open(session.handle, config, handle), f"source {topic!r}")
        self.handle = handle[0]
        if options.late_join:
            self._retain(core, options)

    def _retain(self, core: CoreContext, options: SourceOptions) -> None:
        config = ffi.new("um_retention_config *")
        config.size_limit_bytes = options.retransmit_retention_size_limit_bytes
        config.size_threshold_bytes = options.retransmit_retention_size_threshold_bytes
        config.age_threshold_ns = options.retransmit_retention_age_threshold_ns
        core.check(lib.um_publication_retain(self.handle, config), f"retaining messages of {self.topic!r}")

    def close(self) -> None:
        """Flush and end it."""
        lib.um_publication_close(self.handle)

    def disown(self) -> None:
        """Refuse sends and leave the memory alone, in a forked child."""
        lib.um_publication_disown(self.handle)
        self.handle = None
        self.session.disown()

    def __del__(self) -> None:
        if self.handle is not None:
            lib.um_publication_free(self.handle)
