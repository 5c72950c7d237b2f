"""The options of a context.

One file, because it is one table: each option of the scope once, with its unit, range and default.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

from umstack.config.networks import Networks, networks_of
from umstack.config.option import Kind, Scope, option
from umstack.config.stream_context_options import StreamContextOptions
from umstack.errors import OptionError
from umstack.sizing import UDP_PAYLOAD_MAXIMUM_BYTES

RESOLVER_DAEMON_PORT = 15380
"""The default UDP port of a resolution daemon."""
_FROM_MTU = "from the interface MTU"
_NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True)
class ContextOptions(StreamContextOptions):
    """Options of scope `context`, as Config.context_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.CONTEXT

    # The request port: responses, late join and off-transport recovery

    request_tcp_bind_request_port: bool = option(
        Kind.SWITCH,
        um=1,
        doc="0: no request port, so sources of this context offer neither requests nor late join.",
    )
    request_tcp_interface: str = option(
        Kind.IPV4_INTERFACE,
        um="0.0.0.0",
        doc="Interface of the request port: a name, an IPv4 address or a network. 0.0.0.0: the context's interface.",
    )
    request_tcp_port: int = option(
        Kind.INTEGER, um=0, maximum=65535, zero="the first free port of the range", doc="The request port."
    )
    request_tcp_port_low: int = option(
        Kind.INTEGER, um=14391, minimum=1, maximum=65535, doc="First TCP port of the range of request ports."
    )
    request_tcp_port_high: int = option(
        Kind.INTEGER,
        um=14395,
        minimum=1,
        maximum=65535,
        doc="Last TCP port of that range; a context uses one.",
    )
    request_tcp_listen_backlog: int = option(
        Kind.INTEGER,
        um=5,
        ours=128,
        minimum=1,
        maximum=65535,
        reason="All responders to a request connect at the same time; one that meets a full backlog retries only after "
        "a second.",
        doc="Connections that the kernel holds until the context accepts them.",
    )
    request_tcp_reuseaddr: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        reason="A restarted process gets its port back at once.",
        doc="Open the request port with SO_REUSEADDR.",
    )
    request_tcp_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        maximum=86_400_000,
        zero="off",
        doc="Time within which the kernel detects, by keepalive, that a peer at the request port is gone.",
    )
    recovery_connections_maximum: int = option(
        Kind.INTEGER,
        ours=64,
        minimum=1,
        maximum=4096,
        doc="Maximum receivers served at a time at the request port, and peers that have sent nothing yet; another "
        "one is disconnected and retries, unless an unproductive connection can be replaced.",
    )
    recovery_data_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        ours=1_000_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Rate limit for all data sent to those receivers together.",
    )
    recovery_idle_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=15000,
        minimum=10,
        maximum=3_600_000,
        doc="A receiver that requests nothing, or reads nothing, for this long is disconnected; so is a peer that "
        "connects to the request port and sends nothing.",
    )

    # Requests and responses

    request_pending_maximum: int = option(
        Kind.INTEGER, ours=65536, minimum=1, maximum=2**24, doc="Maximum number of requests open at a time."
    )
    request_responders_maximum: int = option(
        Kind.INTEGER,
        ours=1024,
        minimum=1,
        maximum=65536,
        doc="Maximum number of responders connected to the request port at a time; another one is disconnected, "
        "unless an unproductive connection, or one idle for a minute, can be replaced.",
    )
    request_response_buffer_bytes: int = option(
        Kind.BYTES,
        ours=64 * 2**20,
        minimum=65536,
        maximum=2**34,
        doc="Memory for responses that have arrived, in part or whole, and are not yet read; responses beyond it "
        "are dropped, counted and reported to the reader.",
    )
    response_maximum_message_length_bytes: int = option(
        Kind.BYTES,
        ours=1048576,
        minimum=1,
        maximum=2**30,
        doc="Longer responses are rejected, by the responder and by the requester.",
    )
    response_connections_maximum: int = option(
        Kind.INTEGER,
        ours=256,
        minimum=1,
        maximum=65536,
        doc="Maximum number of requesters this context is connected to for its responses; a new connection replaces "
        "the one idle for longest.",
    )
    response_session_maximum_buffer_bytes: int = option(
        Kind.BYTES,
        um=65536,
        minimum=1,
        maximum=2**30,
        doc="Maximum bytes of responses to one requester that may be queued before the kernel; beyond it respond() "
        "waits.",
    )
    response_session_sender_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=0,
        maximum=2**30,
        zero="the kernel's default",
        doc="Send buffer (SO_SNDBUF) of each connection to a requester.",
    )
    response_tcp_deletion_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=20000,
        minimum=10,
        maximum=3_600_000,
        doc="A connection to a requester ends this long after its last response (C13), or when the requester has "
        "read nothing for this long.",
    )
    response_tcp_interface: str = option(
        Kind.IPV4_INTERFACE,
        um="0.0.0.0",
        doc="Interface whose address connections to requesters have: a name, an IPv4 address or a network. 0.0.0.0: "
        "the kernel chooses.",
    )
    response_tcp_nodelay: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        reason="Nagle's algorithm delays the second of two small responses until the first is acknowledged, up to 40 "
        "ms.",
        doc="Send responses and late-join data at once (TCP_NODELAY).",
    )

    # Operation

    operational_mode: str = option(
        Kind.CHOICE,
        um="embedded",
        choices=("embedded", "sequential"),
        doc="embedded: the context runs its own thread. sequential: the application calls process_events().",
    )
    file_descriptor_management_behavior: str = option(
        Kind.CHOICE,
        um="pend",
        choices=("pend", "busy_wait"),
        doc="How the context waits: asleep in the kernel (pend), or polling without pause (busy_wait).",
    )
    pend_linger_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        maximum=1000,
        doc="With pend: how long to keep polling after the last event before sleeping.",
    )
    pend_adaptive_linger_limit_ns: int = option(
        Kind.MILLISECONDS,
        ours=0.1,
        maximum=10,
        zero="never",
        doc="With pend: maximum time a waiting call polls before it sleeps, used only while messages usually arrive "
        "within that time, because waking a thread takes longer than waiting for a reply in flight. A task that "
        "awaits messages blocks its event loop for up to this time.",
    )
    pend_busy_poll_limit: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=10_000,
        zero="off",
        doc="With pend: microseconds for which a wait polls the driver of the NIC queue that delivers the datagrams "
        "before it sleeps (preferred busy polling of epoll, Linux 6.9). Under traffic the queue's interrupts "
        "stay off if `umstack nic init --prefer-busy-poll` has set irq-suspend-timeout (Linux 6.13). Turns "
        "link_gro off.",
    )
    pend_coalescing_limit_ns: int = option(
        Kind.MILLISECONDS,
        ours=2,
        maximum=100,
        zero="never",
        doc="With pend: how long datagrams may gather under load (about 80 thousand per second) before the context "
        "receives them; at most 0.3 ms over sockets. Over rings the interval grows to this while a ring is far "
        "from full. Larger values save CPU; smaller values reduce latency.",
    )
    multiple_receive_maximum_datagrams: int = option(
        Kind.INTEGER,
        um=0,
        ours=64,
        maximum=1024,
        zero="one at a time",
        reason="A system call per datagram halves the rate a receiver can process.",
        doc="Maximum datagrams received from one socket in one call (recvmmsg) before the next session is served.",
    )
    link: str = option(
        Kind.CHOICE,
        ours="socket",
        choices=("auto", "socket", "xdp", "zero-copy", "native", "generic"),
        doc="Data path: kernel sockets; AF_XDP rings (`xdp`: the best of the three modes listed after it); or "
        "`auto`: the best this host supports, which never fails. Rings use the interface exclusively, and "
        "datagrams sent over them do not reach receivers on the same host, so they are not the default.",
    )
    link_gso: bool = option(
        Kind.SWITCH,
        ours=1,
        doc="Let the socket link send runs of datagrams as one (UDP GSO). Captures on the sender then show a run as "
        "one datagram; 0 keeps them readable.",
    )
    link_gro: bool = option(
        Kind.SWITCH, ours=1, doc="Let the socket link receive runs of datagrams as one (UDP GRO)."
    )
    link_xdp_queues: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=64,
        zero="all",
        doc="Number of receive queues of the interface, from the first, on which the AF_XDP link opens rings.",
    )
    link_xdp_receive_frames: int = option(
        Kind.INTEGER,
        ours=4096,
        minimum=64,
        maximum=65536,
        doc="Datagrams that can wait in the rings of one queue, rounded up to a power of two: how far a receiver "
        "may fall behind in a burst. They are locked memory, 2048 or 4096 bytes each.",
    )
    link_xdp_checksum: bool = option(
        Kind.SWITCH,
        ours=1,
        doc="Verify the UDP checksum of datagrams from the rings, as the kernel does for sockets. A NIC drops only "
        "frames with a wrong frame check sequence; with 0, other damage is delivered as right.",
    )
    link_xdp_busy_poll: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=10_000,
        zero="off",
        doc="Preferred busy polling: microseconds for which a receive that finds the rings empty runs the driver.",
    )

    link_xdp_nic_timestamps: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="Over AF_XDP rings, use the NIC driver's receive timestamp of each datagram if supported (see `umstack "
        "doctor`). Needs Linux 6.3 and a native mode; the statistics show which timestamps are in use.",
    )
    link_xdp_broker: str = option(
        Kind.TEXT,
        ours="/run/umstack/xdp.sock",
        doc="Socket of the broker that opens the AF_XDP link for a process without the capabilities (`umstack "
        "broker`, docs/privileges.md). A process with the capabilities does not need it.",
    )

    driver_search_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=10_000,
        maximum=3_600_000,
        zero="do not look for it",
        doc="How long a context whose driver has ended looks for a driver at the same path, while its sends wait. "
        "After that a context with driver='auto' continues on sockets of its own, and sends of others raise "
        "DriverError (docs/driver.md).",
    )

    # Interface

    default_interface: str = option(
        Kind.INTERFACE,
        um="0.0.0.0",
        doc="Interface to use: a name, an address or a network (10.1.0.0/16, fd00:1::/64, fe80::1%eth1). An IPv6 one "
        "also chooses the address for IPv6 groups. 0.0.0.0: the first multicast interface other than loopback.",
    )
    resolver_multicast_interface: str = option(
        Kind.INTERFACE,
        um="0.0.0.0",
        doc="Interface for topic resolution and LBT-RM, in the same forms. 0.0.0.0: default_interface.",
    )
    resolver_multicast_ttl: int = option(
        Kind.INTEGER, um=16, maximum=255, doc="IP time to live of topic resolution and LBT-RM datagrams."
    )
    ip_dscp: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=63,
        doc="Differentiated services code point (DSCP) of everything the context sends: data, control messages, topic "
        "resolution and TCP, over sockets and rings. 46 is expedited forwarding.",
    )

    # Datagram sizes

    transport_lbtrm_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=8192,
        ours=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero=_FROM_MTU,
        reason="IP splits a datagram above the MTU, and the loss of one part loses the whole. The largest datagram "
        "that is never split is the MTU minus 28, and the default follows the MTU.",
        doc="Largest UDP payload of an LBT-RM datagram. Above the MTU, IP fragments it over sockets; rings refuse it.",
    )
    transport_lbtrm_source_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="as transport_lbtrm_datagram_max_size",
        doc="Largest UDP payload of an LBT-RM datagram sent.",
    )
    transport_lbtrm_receiver_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="whatever comes",
        doc="Longest datagram received: a longer one is dropped and counted (dgrams_dropped_too_long), and its "
        "messages are lost (UX-26).",
    )
    dynamic_fragmentation_reduction: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        choices=(1,),
        reason="Headers are always sized exactly: this stack has no other way of fragmenting.",
        doc="A message that fits a datagram is never split.",
    )
    resolver_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=8192,
        ours=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero=_FROM_MTU,
        reason="As transport_lbtrm_datagram_max_size.",
        doc="Largest UDP payload of a topic resolution datagram.",
    )

    # LBT-RM buffers and rates

    transport_lbtrm_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES, um=8388608, minimum=4096, maximum=2**30, doc="Receive buffer of LBT-RM data sockets."
    )
    transport_lbtrm_source_socket_buffer_bytes: int = option(
        Kind.BYTES, um=1048576, minimum=4096, maximum=2**30, doc="Send buffer of LBT-RM data sockets."
    )
    transport_lbtrm_data_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=10_000_000,
        ours=1_000_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="A limit of 10 Mbit/s surprises users because sends block for no visible cause.",
        doc="Limit for new and retransmitted data of all LBT-RM sessions of the context.",
    )
    transport_lbtrm_retransmit_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=5_000_000,
        ours=100_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="A tenth of the data rate limit bounds the load that NAKs can cause; higher loss is a fault.",
        doc="Limit for retransmissions; keep it below the data rate limit. One receiver may cause at most a quarter "
        "of it, and all receivers that send no status messages together a tenth; 0: no limit for any receiver.",
    )
    transport_lbtrm_rate_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10,
        minimum="0.1",
        maximum=1000,
        doc="Interval over which the rate limits apply. Long intervals allow bursts, short ones cost wake-ups.",
    )
    transport_lbtrm_receiver_timestamp: bool = option(
        Kind.SWITCH,
        um=0,
        doc="Use the kernel's receive time of a datagram instead of the context's clock: the socket's timestamp, or "
        "over AF_XDP rings the time at which the XDP program received the frame.",
    )

    # LBT-RM addressing

    transport_lbtrm_multicast_address_low: str = option(
        Kind.MULTICAST_GROUP, um="224.10.10.10", doc="First group of the pool for new sessions, IPv4 or IPv6."
    )
    transport_lbtrm_multicast_address_high: str = option(
        Kind.MULTICAST_GROUP, um="224.10.10.14", doc="Last group of that pool."
    )
    transport_lbtrm_multicast_sources: str = option(
        Kind.ADDRESSES,
        ours="any",
        doc="Sources for which LBT-RM groups are joined. any: every sender to the group. discovered: each source found "
        "by topic resolution (source-specific multicast, IGMPv3 or MLDv2). Addresses separated by commas: the same, "
        "and other sources are ignored.",
    )
    transport_lbtrm_source_port_low: int = option(
        Kind.INTEGER,
        um=14390,
        minimum=1,
        maximum=65535,
        doc="First UDP port for receiving NAKs, one per session.",
    )
    transport_lbtrm_source_port_high: int = option(
        Kind.INTEGER, um=14399, minimum=1, maximum=65535, doc="Last UDP port for receiving NAKs."
    )

    # LBT-RU

    transport_lbtru_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=8192,
        ours=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="as transport_lbtrm_datagram_max_size",
        reason="As transport_lbtrm_datagram_max_size.",
        doc="Largest UDP payload of an LBT-RU datagram; at most that of LBT-RM.",
    )
    transport_lbtru_source_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="as transport_lbtru_datagram_max_size",
        doc="Largest UDP payload of an LBT-RU datagram sent.",
    )
    transport_lbtru_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES, um=8388608, minimum=4096, maximum=2**30, doc="Receive buffer of LBT-RU sockets."
    )
    transport_lbtru_source_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=1048576,
        minimum=4096,
        maximum=2**30,
        doc="Send buffer of LBT-RU sockets; UM recommends 1000000 plus 100000 per receiver.",
    )
    transport_lbtru_data_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=10_000_000,
        ours=1_000_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="As transport_lbtrm_data_rate_limit.",
        doc="Limit for new data of all LBT-RU sessions of the context. Each receiver's copy counts.",
    )
    transport_lbtru_retransmit_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=5_000_000,
        ours=100_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="As transport_lbtrm_retransmit_rate_limit.",
        doc="Limit for retransmissions of those sessions, which are sent to every receiver; shared as for LBT-RM.",
    )
    transport_lbtru_rate_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=100,
        ours=10,
        minimum="0.1",
        maximum=1000,
        reason="As transport_lbtrm_rate_interval: the allowance of 100 ms would be sent in one burst.",
        doc="Interval over which the LBT-RU rate limits apply.",
    )
    transport_lbtru_port_low: int = option(
        Kind.INTEGER, um=14380, minimum=1, maximum=65535, doc="First UDP port of the pool of LBT-RU sources."
    )
    transport_lbtru_port_high: int = option(
        Kind.INTEGER, um=14389, minimum=1, maximum=65535, doc="Last UDP port of that pool."
    )
    transport_lbtru_maximum_ports: int = option(
        Kind.INTEGER,
        um=5,
        minimum=1,
        maximum=256,
        doc="Maximum LBT-RU sessions for sources without a transport_lbtru_port; further sources share them in "
        "turn.",
    )

    # Authentication

    authentication_scope: str = option(
        Kind.CHOICE,
        ours="none",
        choices=("none", "control", "all"),
        doc="Which datagrams carry a tag made with a key of authentication_key_file, and are accepted only with a "
        "valid tag: control messages (SM, NAK, NCF, status messages, topic resolution), or DATA as well. Set it "
        "equally on all hosts (docs/authentication.md).",
    )
    authentication_key_file: str = option(
        Kind.TEXT,
        ours="none",
        doc="Key file, readable by its owner only, made by `umstack key new`. It is reloaded when it changes.",
    )
    encryption: str = option(
        Kind.CHOICE,
        ours="none",
        choices=("none", "aes-256-gcm"),
        doc="Encrypt the payloads of all messages with these keys; headers stay readable. Needs authentication_scope "
        "all, and the same value on all hosts (docs/authentication.md#encryption).",
    )
    authentication_time_tolerance_ns: int = option(
        Kind.SECONDS,
        ours=60,
        minimum=1,
        maximum=86400,
        doc="Maximum difference between clocks. Recorded datagrams are rejected as replayed or, later, as too old.",
    )

    # Delivery

    delivery_control_maximum_total_map_entries: int = option(
        Kind.INTEGER,
        um=200000,
        minimum=1,
        maximum=2**26,
        doc="Maximum entries of an order map, for each topic of each source. UM's 0 (no bound) is not supported.",
    )
    delivery_hold_datagrams: int = option(
        Kind.INTEGER,
        ours=16384,
        minimum=64,
        maximum=2**24,
        doc="Datagrams that the context can store for messages behind a gap or a full queue.",
    )

    # Topic resolution

    resolver_multicast_address: str = option(
        Kind.MULTICAST_GROUP, um="224.9.10.11", doc="Group of topic resolution."
    )
    resolver_multicast_port: int = option(
        Kind.INTEGER, um=12965, minimum=1, maximum=65535, doc="UDP port of topic resolution."
    )
    resolver_multicast_incoming_address: str = option(
        Kind.MULTICAST_GROUP, um="0.0.0.0", doc="Group to receive on. 0.0.0.0: resolver_multicast_address."
    )
    resolver_multicast_incoming_port: int = option(
        Kind.INTEGER, um=0, maximum=65535, zero="resolver_multicast_port", doc="Port to receive on."
    )
    resolver_multicast_outgoing_address: str = option(
        Kind.MULTICAST_GROUP, um="0.0.0.0", doc="Group to send to. 0.0.0.0: resolver_multicast_address."
    )
    resolver_multicast_outgoing_port: int = option(
        Kind.INTEGER, um=0, maximum=65535, zero="resolver_multicast_port", doc="Port to send to."
    )
    resolver_multicast_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=8388608,
        minimum=4096,
        maximum=2**30,
        doc="Receive buffer of the topic resolution socket.",
    )
    resolver_unicast_daemon: str = option(
        Kind.TEXT,
        um="none",
        doc="Resolution daemons (`umstack resolver`), ADDRESS[:PORT] separated by commas: topic resolution uses the "
        "first that responds instead of multicast. none: multicast.",
    )
    resolver_unicast_port_low: int = option(
        Kind.INTEGER, um=14402, minimum=1, maximum=65535, doc="First local port for resolution daemons."
    )
    resolver_unicast_port_high: int = option(
        Kind.INTEGER, um=14406, minimum=1, maximum=65535, doc="Last local port for resolution daemons."
    )
    resolver_unicast_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=10,
        maximum=3_600_000,
        doc="A resolution daemon from which nothing arrived for this long is not used.",
    )
    resolver_unicast_keepalive_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        minimum=10,
        maximum=3_600_000,
        doc="Interval of keepalives to each resolution daemon, which replies to them.",
    )
    resolver_cache: bool = option(
        Kind.SWITCH,
        um=1,
        doc="Remember sources of topics that no receiver here uses yet, so that a new receiver joins them at once "
        "(UX-16).",
    )
    resolver_cache_maximum_entries: int = option(
        Kind.INTEGER,
        ours=100000,
        minimum=1,
        maximum=2**24,
        doc="Maximum number of sources remembered; a new one replaces the one whose last advertisement is oldest.",
    )
    resolver_initial_advertisements_per_second: int = option(
        Kind.INTEGER,
        um=1000,
        ours=5000,
        maximum=10**7,
        zero=_NO_LIMIT,
        reason="10,000 sources would need ten seconds for their first advertisements; the limit in bit/s still holds.",
        doc="Limit for advertisements of the initial phase.",
    )
    resolver_initial_advertisement_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Limit for advertisements of the initial phase, in bit/s.",
    )
    resolver_sustain_advertisements_per_second: int = option(
        Kind.INTEGER,
        um=0,
        maximum=10**7,
        zero=_NO_LIMIT,
        doc="Limit for advertisements of the sustaining phase.",
    )
    resolver_sustain_advertisement_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Limit for advertisements of the sustaining phase, in bit/s.",
    )
    resolver_initial_queries_per_second: int = option(
        Kind.INTEGER,
        um=1000,
        ours=5000,
        maximum=10**7,
        zero=_NO_LIMIT,
        reason="10,000 receivers would need ten seconds for their first queries; the limit in bit/s still holds.",
        doc="Limit for queries of the initial phase.",
    )
    resolver_initial_query_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Limit for queries of the initial phase, in bit/s.",
    )
    resolver_sustain_queries_per_second: int = option(
        Kind.INTEGER, um=0, maximum=10**7, zero=_NO_LIMIT, doc="Limit for queries of the sustaining phase."
    )
    resolver_sustain_query_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Limit for queries of the sustaining phase, in bit/s.",
    )

    resolver_wildcard_queries_per_second: int = option(
        Kind.INTEGER, um=0, maximum=10**7, zero=_NO_LIMIT, doc="Limit for wildcard queries."
    )
    resolver_wildcard_query_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="Limit for wildcard queries, in bit/s.",
    )

    @property
    def interface(self) -> str:
        """The interface for topic resolution and LBT-RM; 0.0.0.0: the context chooses."""
        chosen = self.resolver_multicast_interface
        return self.default_interface if chosen == "0.0.0.0" else chosen

    @property
    def traffic_class(self) -> int:
        """The second byte of IPv4 headers: the DSCP, followed by two bits for congestion notification."""
        return self.ip_dscp << 2

    @property
    def source_datagram_size_bytes(self) -> int:
        """Configured size of sent datagrams; 0: the size that the MTU allows."""
        return (
            self.transport_lbtrm_source_datagram_max_size_bytes
            or self.transport_lbtrm_datagram_max_size_bytes
        )

    @property
    def lbtru_source_datagram_size_bytes(self) -> int:
        """Configured size of sent LBT-RU datagrams; 0: the size for LBT-RM."""
        return (
            self.transport_lbtru_source_datagram_max_size_bytes
            or self.transport_lbtru_datagram_max_size_bytes
        )

    @property
    def multicast_sources(self) -> frozenset[str] | None:
        """The sources for which groups are joined, empty for every discovered one; None: any sender."""
        text = self.transport_lbtrm_multicast_sources
        if text == "any":
            return None
        if text == "discovered":
            return frozenset()
        return frozenset(map(_multicast_source, re.split(r"[,;\s]+", text)))

    @property
    def tcp_networks(self) -> Networks | None:
        """The networks of tcp_connections_allowed, empty: any; None: those of the resolution domain."""
        text = self.tcp_connections_allowed.strip()
        if text == "domain":
            return None
        return () if text == "any" else networks_of("tcp_connections_allowed", text)

    @property
    def resolver_daemons(self) -> tuple[tuple[str, int], ...]:
        """Addresses and ports of the resolution daemons; empty: topic resolution by multicast."""
        if self.resolver_unicast_daemon == "none":
            return ()
        return tuple(map(_daemon, re.split(r"[,;\s]+", self.resolver_unicast_daemon)))

    @property
    def resolver_incoming(self) -> tuple[str, int]:
        """Group and port on which topic resolution receives."""
        address = self.resolver_multicast_incoming_address
        return (
            self.resolver_multicast_address if address == "0.0.0.0" else address,
            self.resolver_multicast_incoming_port or self.resolver_multicast_port,
        )

    @property
    def resolver_outgoing(self) -> tuple[str, int]:
        """Group and port to which topic resolution sends."""
        address = self.resolver_multicast_outgoing_address
        return (
            self.resolver_multicast_address if address == "0.0.0.0" else address,
            self.resolver_multicast_outgoing_port or self.resolver_multicast_port,
        )


def _multicast_source(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = ipaddress.IPv4Address(0)
    if not int(address) or address.is_multicast:
        raise OptionError(
            f"context option transport_lbtrm_multicast_sources: {text!r} is not the address of a source",
            hint="give any, discovered, or addresses separated by commas",
        )
    return str(address)


def _daemon(text: str) -> tuple[str, int]:
    """Parse one daemon; ignores Ultra Messaging's interface and local port before `->`: the context chooses them."""
    host, _, port = text.rpartition("->")[2].partition(":")
    try:
        address = str(ipaddress.IPv4Address(host))
        number = int(port) if port else RESOLVER_DAEMON_PORT
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        raise OptionError(
            f"context option resolver_unicast_daemon: {text!r} is not the address of a daemon",
            hint="give ADDRESS or ADDRESS:PORT",
        )
    return address, number
