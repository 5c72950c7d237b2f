"""Options that LBT-RM and LBT-RU both have, by one name for the two transports.

Each value is read from its own attribute, so that a search for an option finds where it is used.
"""

from __future__ import annotations

from typing import NamedTuple

from umstack.config.context_options import ContextOptions
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.source_options import SourceOptions


class DatagramRates(NamedTuple):
    """Rate limits of a context for one transport, in bits per second; 0: no limit."""

    data: int
    retransmit: int


class DatagramSource(NamedTuple):
    """Options of a source session; times in nanoseconds."""

    transmission_window_bytes: int
    coalesce_threshold: int
    ignore_interval_ns: int
    sm_minimum_interval_ns: int
    sm_maximum_interval_ns: int
    nak_cutoff_interval_ns: int


class DatagramReceiver(NamedTuple):
    """Options of a receiving session; times in nanoseconds."""

    nak_initial_backoff_ns: int
    nak_backoff_ns: int
    nak_suppress_ns: int
    nak_generation_ns: int
    activity_timeout_ns: int
    sends_naks: bool
    nak_rate_limit: int


def rates_of(options: ContextOptions, transport: str) -> DatagramRates:
    """Return the rate limits of a transport, "lbtrm" or "lbtru"."""
    if transport == "lbtru":
        return DatagramRates(
            options.transport_lbtru_data_rate_limit_bits_per_second,
            options.transport_lbtru_retransmit_rate_limit_bits_per_second,
        )
    return DatagramRates(
        options.transport_lbtrm_data_rate_limit_bits_per_second,
        options.transport_lbtrm_retransmit_rate_limit_bits_per_second,
    )


def source_of(options: SourceOptions, transport: str) -> DatagramSource:
    """Return a source's options for a transport, "lbtrm" or "lbtru"."""
    if transport == "lbtru":
        return DatagramSource(
            options.transport_lbtru_transmission_window_size_bytes,
            options.transport_lbtru_coalesce_threshold,
            options.transport_lbtru_ignore_interval_ns,
            options.transport_lbtru_sm_minimum_interval_ns,
            options.transport_lbtru_sm_maximum_interval_ns,
            options.transport_lbtru_nak_cutoff_interval_ns,
        )
    return DatagramSource(
        options.transport_lbtrm_transmission_window_size_bytes,
        options.transport_lbtrm_coalesce_threshold,
        options.transport_lbtrm_ignore_interval_ns,
        options.transport_lbtrm_sm_minimum_interval_ns,
        options.transport_lbtrm_sm_maximum_interval_ns,
        options.transport_lbtrm_nak_cutoff_interval_ns,
    )


def receiver_of(options: ReceiverOptions, transport: str) -> DatagramReceiver:
    """Return a receiver's options for a transport, "lbtrm" or "lbtru"."""
    if transport == "lbtru":
        return DatagramReceiver(
            options.transport_lbtru_nak_initial_backoff_interval_ns,
            options.transport_lbtru_nak_backoff_interval_ns,
            options.transport_lbtru_nak_suppress_interval_ns,
            options.transport_lbtru_nak_generation_interval_ns,
            options.transport_lbtru_activity_timeout_ns,
            options.transport_lbtru_send_naks,
            options.transport_lbtru_nak_rate_limit_naks_per_second,
        )
    return DatagramReceiver(
        options.transport_lbtrm_nak_initial_backoff_interval_ns,
        options.transport_lbtrm_nak_backoff_interval_ns,
        options.transport_lbtrm_nak_suppress_interval_ns,
        options.transport_lbtrm_nak_generation_interval_ns,
        options.transport_lbtrm_activity_timeout_ns,
        options.transport_lbtrm_send_naks,
        options.transport_lbtrm_nak_rate_limit_naks_per_second,
    )
