"""Generates captures with known losses, receivers and recoveries, for tests and measurements."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from umstack._core import ffi, lib
from umstack.capture.reading.container import cannot_open
from umstack.errors import InvalidArgument

_PCAP_NANOSECONDS = 0xA1B23C4D
_ETHERNET = 1
_WHOLE_FRAMES = 262144
_CHUNK_BYTES = 8 << 20
_LOSSES = 65536
_FIRST_SESSION_ID = 0x5EED0001


class Outcome(IntEnum):
    """The outcome of a loss."""

    RECOVERED = lib.UM_GENERATE_RECOVERED
    REFUSED = lib.UM_GENERATE_REFUSED
    GIVEN_UP = lib.UM_GENERATE_GIVEN_UP
    OPEN = lib.UM_GENERATE_OPEN


LOSS = np.dtype(
    {
        "names": [
            "session",
            "receiver",
            "sqn",
            "nak_count",
            "lost_ns",
            "first_nak_ns",
            "end_ns",
            "outcome",
        ],
        "formats": ["u4", "u4", "u4", "u4", "i8", "i8", "i8", "u4"],
        "offsets": [0, 4, 8, 12, 16, 24, 32, 40],
        "itemsize": ffi.sizeof("um_generate_loss"),
    }
)
"""A datagram that one receiver did not get: indices of session and receiver, transport sqn, number of NAKs, time of the
first NAK (-1: none), end time (-1: open at the end of the capture) and `Outcome`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Parameters of a generated capture. Times in nanoseconds, probabilities from 0 to 1."""

    seed: int = 1
    start_ns: int = 1_700_000_000_000_000_000
    datagrams_per_second: float = 100_000.0
    sessions: int = 1
    receivers: int = 3
    topics: int = 4
    messages_per_datagram: int = 1
    message_bytes: int = 1368
    snap_bytes: int = 0
    """Captured bytes per frame; 0: all."""
    at_receiver: int | None = None
    """Captured at this receiver's port, after losses; None: at the switch, before them."""
    loss: float = 0.001
    """Probability that a run of losses starts, per datagram and receiver."""
    run_more: float = 0.3
    """Probability that a run continues, per datagram."""
    shared: float = 0.05
    """Probability that all receivers lose a run."""
    delayed: float = 0.05
    """Probability that a NAK first gets an NCF `rx_delay`."""
    refused: float = 0.01
    """Probability that a NAK gets an NCF `no_retry` and no retransmission."""
    backoff_ns: tuple[int, int] = (5_000_000, 50_000_000)
    """Time from detecting the loss, or from the last NAK, to the next NAK."""
    response_ns: int = 100_000
    delay_ns: int = 20_000_000


@dataclass(slots=True)
class Truth:
    """The content of a generated capture."""

    path: Path
    traffic: Traffic
    packets: int = 0
    data: int = 0
    """New DATA packets captured, without retransmissions."""
    retransmissions: int = 0
    naks: int = 0
    ncfs: int = 0
    losses: np.ndarray[Any, np.dtype[np.void]] = field(default_factory=lambda: np.zeros(0, LOSS))

    def session_id(self, session: int) -> int:
        """Return the session id on the wire for a session's index."""
        return _FIRST_SESSION_ID + session

    def source_address(self, session: int) -> str:
        """Return the source address of a session."""
        return f"10.0.0.{1 + session}"

    def receiver_address(self, receiver: int) -> str:
        """Return the source address of a receiver's NAKs."""
        return f"10.1.0.{1 + receiver}"


def generate(path: str | os.PathLike[str], packets: int, traffic: Traffic | None = None) -> Truth:
    """Write a pcap file of exactly `packets` packets, determined by `traffic`, and return its content."""
    truth = Truth(Path(path), traffic or Traffic())
    generator = _generator(truth.traffic)
    try:
        with truth.path.open("wb") as file:
            file.write(_file_header(truth.traffic.snap_bytes))
            losses = list(_run(generator, packets, file))
    except OSError as error:
        raise cannot_open(path, error) from error
    counts = generator.counts
    truth.packets, truth.data = counts.packet_count, counts.data_count
    truth.retransmissions, truth.naks, truth.ncfs = (
        counts.retransmission_count,
        counts.nak_count,
        counts.ncf_count,
    )
    found = np.concatenate(losses)
    truth.losses = found[np.lexsort((found["receiver"], found["sqn"], found["session"]))]
    return truth


def _file_header(snap_bytes: int) -> bytes:
    return struct.pack("<IHHiIII", _PCAP_NANOSECONDS, 2, 4, 0, 0, snap_bytes or _WHOLE_FRAMES, _ETHERNET)


def _generator(traffic: Traffic) -> Any:
    config = ffi.new("um_generate_config *")
    config.seed = traffic.seed
    config.start_ns = traffic.start_ns
    config.gap_ns = round(1e9 / traffic.datagrams_per_second)
    config.session_count = traffic.sessions
    config.receiver_count = traffic.receivers
    config.topic_count = traffic.topics
    config.messages_per_datagram = traffic.messages_per_datagram
    config.message_bytes = traffic.message_bytes
    config.snap_bytes = traffic.snap_bytes
    config.at_receiver = -1 if traffic.at_receiver is None else traffic.at_receiver
    config.loss = traffic.loss
    config.run_more = traffic.run_more
    config.shared = traffic.shared
    config.delayed = traffic.delayed
    config.refused = traffic.refused
    config.backoff_min_ns, config.backoff_max_ns = traffic.backoff_ns
    config.response_ns = traffic.response_ns
    config.delay_ns = traffic.delay_ns
    generator = ffi.new("um_generator *")
    if lib.um_generator_init(generator, config) != 0:
        raise InvalidArgument(
            f"this traffic cannot be generated: {traffic}",
            hint=f"1 to {lib.UM_GENERATE_SESSIONS_MAX} sessions and {lib.UM_GENERATE_RECEIVERS_MAX} receivers, frames "
            f"of up to {lib.UM_GENERATE_FRAME_BYTES_MAX} bytes, probabilities from 0 to 1, no negative times",
        )
    return generator


def _run(generator: Any, packets: int, file: BinaryIO) -> Iterator[np.ndarray[Any, np.dtype[np.void]]]:
    """Write the packets and yield the losses in parts."""
    chunk = bytearray(_CHUNK_BYTES)
    out = ffi.from_buffer("uint8_t[]", chunk)
    losses = np.zeros(_LOSSES, LOSS)
    into = ffi.from_buffer("um_generate_loss[]", losses)
    written = ffi.new("uint64_t *")
    count = ffi.new("uint32_t *")
    while generator.counts.packet_count < packets:
        lib.um_generator_run(generator, packets, out, len(chunk), into, _LOSSES, written, count)
        file.write(memoryview(chunk)[: written[0]])
        yield losses[: count[0]].copy()
    while remaining := lib.um_generator_open_losses(generator, into, _LOSSES):
        yield losses[:remaining].copy()
    yield losses[:0].copy()
