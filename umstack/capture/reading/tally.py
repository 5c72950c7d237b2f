"""First transmissions that the core counts while decoding, instead of rows: `decode(..., tally=...)` fills it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from umstack._core import ffi, lib

_SENDS = 1 << 18
"""First transmissions that a tally holds before it must be emptied."""


def _layout(name: str, columns: dict[str, str]) -> np.dtype[Any]:
    """Return the numpy type of a structure of the core."""
    described = dict(ffi.typeof(name).fields)
    return np.dtype(
        {
            "names": list(columns),
            "formats": list(columns.values()),
            "offsets": [described[column].offset for column in columns],
            "itemsize": ffi.sizeof(name),
        }
    )


_COUNT = "u8"
_LAYOUTS = {
    "streams": _layout(
        "um_tally_stream",
        {
            "interface": "i4",
            "key": "u8",
            "source": "(4,)u1",
            "destination": "(4,)u1",
            "destination_port": "u2",
            "port": "u2",
            "window_ns": "i8",
            "first_ns": "i8",
            "last_ns": "i8",
            **dict.fromkeys(("packet_count", "message_count", "message_bytes", "udp_bytes"), _COUNT),
        },
    ),
    "sends": _layout("um_tally_send", {"time_ns": "i8", "sqn": "u4", "stream": "u4"}),
    "rates": _layout(
        "um_tally_rate", {"start_ns": "i8", "stream": "u4", "datagram_count": "u4", "bytes": _COUNT}
    ),
    "references": _layout(
        "um_tally_reference", {"epoch": "i8", "time_ns": "i8", "sqn": "u4", "stream": "u4"}
    ),
    "sizes": _layout(
        "um_tally_size",
        {
            **dict.fromkeys(("stream", "udp_bytes", "message_count", "datagram_count"), "u4"),
            **dict.fromkeys(("message_bytes", "frame_bytes"), _COUNT),
        },
    ),
    "topics": _layout(
        "um_tally_topic",
        {
            **dict.fromkeys(("stream", "topic_index", "lowest_sqn", "highest_sqn"), "u4"),
            **dict.fromkeys(("first_ns", "last_ns"), "i8"),
            **dict.fromkeys(("message_count", "fragment_count", "payload_bytes"), _COUNT),
        },
    ),
    "marks": _layout(
        "um_tally_mark", {"time_ns": "i8", **dict.fromkeys(("stream", "topic_index", "sqn"), "u4")}
    ),
    "copies": _layout("um_tally_copies", {"window_ns": "i8", "interface": "i4", "packet_count": _COUNT}),
}


class Tally:
    """Counts since the tally was last emptied. One thread at a time may use it."""

    __slots__ = ("_arrays", "core", "interfaces", "path")

    def __init__(self, window_ns: int, epoch_ns: int, send_capacity: int = _SENDS) -> None:
        """Create an empty tally with windows of `window_ns` (0: none)."""
        lengths = {
            "streams": lib.UM_TALLY_STREAMS_MAX,
            "copies": lib.UM_TALLY_STREAMS_MAX,
            "sizes": lib.UM_TALLY_SLOTS,
            "topics": lib.UM_TALLY_SLOTS,
            "marks": send_capacity + lib.UM_TALLY_PACKET_MESSAGES_MAX,
            **dict.fromkeys(("sends", "rates", "references"), send_capacity),
        }
        self._arrays = {name: np.zeros(count, _LAYOUTS[name]) for name, count in lengths.items()}
        self.core = ffi.new(
            "um_tally *", {"window_ns": window_ns, "epoch_ns": epoch_ns, "send_capacity": send_capacity}
        )
        for name, array in self._arrays.items():
            setattr(self.core, name, ffi.cast("void *", array.ctypes.data))
        self.path = ""
        """The capture file."""
        self.interfaces: list[str | None] = []
        """The names of its interfaces, by the number that streams have."""
        lib.um_tally_begin(self.core)

    def __len__(self) -> int:
        copies = self._arrays["copies"][: self.core.copies_count]
        return int(self.core.send_count) + int(copies["packet_count"].sum())

    @contextmanager
    def emptied(self) -> Iterator[dict[str, Any]]:
        """Yield the counts as arrays by name, valid inside the block; then empty the tally."""
        counts = {
            "streams": self.core.stream_count,
            "sends": self.core.send_count,
            "rates": self.core.rate_count,
            "references": self.core.reference_count,
            "marks": self.core.mark_count,
            "copies": self.core.copies_count,
        }
        found = {name: self._arrays[name][:count] for name, count in counts.items()}
        sizes, topics = self._arrays["sizes"], self._arrays["topics"]
        found["sizes"] = sizes[sizes["datagram_count"] > 0]
        found["topics"] = topics[topics["fragment_count"] > 0]
        try:
            yield found
        finally:
            lib.um_tally_begin(self.core)
