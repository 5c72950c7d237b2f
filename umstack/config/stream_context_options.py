"""Context options of TCP and LBT-IPC, the base of ContextOptions."""

from __future__ import annotations

from dataclasses import dataclass

from umstack.config.option import Kind, option
from umstack.config.statistics_options import StatisticsOptions


@dataclass(frozen=True, slots=True)
class StreamContextOptions(StatisticsOptions):
    """Options of scope `context` for the transports that deliver messages whole and in order."""

    # TCP

    tcp_connections_allowed: str = option(
        Kind.ADDRESSES,
        ours="domain",
        doc="Addresses to which the context connects over TCP when others name them: TCP sources, late join and "
        "requests for retained messages, responses. domain: the networks of this host's interfaces, the address that "
        "an advertisement came from and that of a request's source; with resolver_unicast_daemon any. any: all. "
        "Addresses and networks separated by commas: only those.",
    )
    transport_tcp_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=65535,
        minimum=500,
        maximum=65535,
        doc="Maximum bytes of messages passed to a TCP session at once; a longer message is sent in fragments.",
    )
    transport_tcp_port_low: int = option(
        Kind.INTEGER,
        um=14371,
        minimum=1,
        maximum=65535,
        doc="First TCP port of the pool that sessions listen on.",
    )
    transport_tcp_port_high: int = option(
        Kind.INTEGER, um=14390, minimum=1, maximum=65535, doc="Last port of that pool."
    )
    transport_tcp_maximum_ports: int = option(
        Kind.INTEGER,
        um=10,
        minimum=1,
        maximum=256,
        doc="Maximum number of sessions from that pool; further sources share them in turn.",
    )
    transport_tcp_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=0,
        maximum=2**30,
        zero="the system's default, which adapts",
        doc="Receive buffer of each connection.",
    )

    # LBT-IPC

    transport_lbtipc_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=65535,
        minimum=500,
        maximum=65535,
        doc="Maximum bytes of messages written to a shared log at once; a longer message is sent in fragments.",
    )
    transport_lbtipc_id_low: int = option(
        Kind.INTEGER,
        um=20001,
        minimum=1,
        maximum=65535,
        doc="First transport id of the pool of LBT-IPC sessions.",
    )
    transport_lbtipc_id_high: int = option(
        Kind.INTEGER,
        um=20005,
        minimum=1,
        maximum=65535,
        doc="Last id of that pool; when all have a session, further sources share these in turn.",
    )
    transport_lbtipc_receiver_thread_behavior: str = option(
        Kind.CHOICE,
        um="pend",
        choices=("pend", "busy_wait"),
        doc="busy_wait: the context's loop does not sleep while it receives from a shared log, so that no source has "
        "to wake it; it occupies a processor. pend: it sleeps while there is nothing to read.",
    )
