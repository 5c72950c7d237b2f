"""The options of a context.

One file, because it is one table: each option of the scope once, with its unit, range and default.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

from umstack.config.option import Kind, Scope, option
from umstack.errors import OptionError
from umstack.sizing import UDP_PAYLOAD_MAXIMUM_BYTES

RESOLVER_DAEMON_PORT = 15380
"""The UDP port of a resolution daemon, unless another is named."""
_FROM_MTU = "from the interface MTU"
_NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Options of scope `context`, as Config.context_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.CONTEXT

    # The request port: responses, late join and off-transport recovery

    request_tcp_bind_request_port: bool = option(
        Kind.SWITCH,
        um=1,
        doc="0: no request port, and so no requests of sources here, and no late join from them.",
    )
    request_tcp_interface: str = option(
        Kind.TEXT,
        um="0.0.0.0",
        doc="IPv4 address that the request port is bound to, and that requests name; 0.0.0.0: that of the context's "
        "interface.",
    )
    request_tcp_port: int = option(
        Kind.INTEGER, um=0, maximum=65535, zero="the first free port of the range", doc="The request port."
    )
    request_tcp_port_low: int = option(
        Kind.INTEGER, um=14391, minimum=1, maximum=65535, doc="First TCP port of the range of request ports."
    )
    request_tcp_port_high: int = option(
        Kind.INTEGER, um=14395, minimum=1, maximum=65535, doc="Last of those ports: a context takes one."
    )
    request_tcp_listen_backlog: int = option(
        Kind.INTEGER,
        um=5,
        ours=128,
        minimum=1,
        maximum=65535,
        reason="every responder to a request connects at the same moment, and one that finds the backlog full tries "
        "again only after a second",
        doc="Connections that the kernel holds until the context accepts them.",
    )
    request_tcp_reuseaddr: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        reason="a process that is started again shall get its port at once",
        doc="Whether the request port is opened with SO_REUSEADDR.",
    )
    request_tcp_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        maximum=86_400_000,
        zero="off",
        doc="Have the kernel find out within about this time, by keep-alive, that a peer at the request port is gone.",
    )
    recovery_connections_maximum: int = option(
        Kind.INTEGER,
        ours=64,
        minimum=1,
        maximum=4096,
        doc="Receivers served at a time at that port, and peers that have said nothing yet; one more is disconnected "
        "and tries again, unless one that was of no use so far makes way.",
    )
    recovery_data_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        ours=1_000_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="What the context sends to all of them together.",
    )
    recovery_idle_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=15000,
        minimum=10,
        maximum=3_600_000,
        doc="A receiver that asks nothing, or takes nothing, for this long is disconnected; so is a peer that connects "
        "to the request port and says nothing.",
    )

    # Requests and responses

    request_pending_maximum: int = option(
        Kind.INTEGER,
        ours=65536,
        minimum=1,
        maximum=2**24,
        doc="Requests that are open at a time.",
    )
    request_responders_maximum: int = option(
        Kind.INTEGER,
        ours=1024,
        minimum=1,
        maximum=65536,
        doc="Responders that are connected to the request port at a time; one more is disconnected, unless one that "
        "was of no use so far, or idle for a minute, makes way.",
    )
    request_response_buffer_bytes: int = option(
        Kind.BYTES,
        ours=64 * 2**20,
        minimum=65536,
        maximum=2**34,
        doc="Responses of all requests that have arrived, in part or whole, and are not read yet; what comes beyond it "
        "is dropped, counted, and told to the reader.",
    )
    response_maximum_message_length_bytes: int = option(
        Kind.BYTES,
        ours=1048576,
        minimum=1,
        maximum=2**30,
        doc="A longer response is refused, by the responder and by the requester.",
    )
    response_connections_maximum: int = option(
        Kind.INTEGER,
        ours=256,
        minimum=1,
        maximum=65536,
        doc="Requesters that this context is connected to at a time for its responses; the one idle for longest makes "
        "way.",
    )
    response_session_maximum_buffer_bytes: int = option(
        Kind.BYTES,
        um=65536,
        minimum=1,
        maximum=2**30,
        doc="Bytes of responses to one requester that may wait for the kernel to take them; respond() waits beyond it.",
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
        doc="A connection to a requester ends so long after its last response (C13), or when the requester has taken "
        "nothing for so long.",
    )
    response_tcp_interface: str = option(
        Kind.TEXT,
        um="0.0.0.0",
        doc="IPv4 address that connections to requesters come from; 0.0.0.0: the kernel chooses.",
    )
    response_tcp_nodelay: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        reason="Nagle's algorithm holds the second of two small responses back until the first is acknowledged, up to "
        "40 ms",
        doc="Send responses, and what late join recovers, at once (TCP_NODELAY).",
    )

    # TCP

    transport_tcp_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=65535,
        minimum=500,
        maximum=65535,
        doc="Most bytes of messages that are handed to a TCP session at once; a message that is longer is sent in "
        "fragments.",
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
        doc="Most sessions of that pool; sources beyond them share them in turn.",
    )
    transport_tcp_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=0,
        maximum=2**30,
        zero="as the system has it, which adapts",
        doc="Receive buffer of each connection.",
    )

    # Operation

    operational_mode: str = option(
        Kind.CHOICE,
        um="embedded",
        choices=("embedded", "sequential"),
        doc="embedded: the context has a thread of its own. sequential: the application calls "
        "process_events().",
    )
    file_descriptor_management_behavior: str = option(
        Kind.CHOICE,
        um="pend",
        choices=("pend", "busy_wait"),
        doc="How the context waits: asleep in the kernel, or polling without pause.",
    )
    pend_linger_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        maximum=1000,
        doc="With pend: how long to go on polling after the last event before going to sleep.",
    )
    pend_adaptive_linger_limit_ns: int = option(
        Kind.MILLISECONDS,
        ours=0.1,
        maximum=10,
        zero="never",
        doc="With pend: the longest polling of a call that waits before it goes to sleep, done only as long as what "
        "comes comes within that time: waking a thread takes longer than a reply that is on its way. A task that "
        "awaits messages holds up its event loop for so long.",
    )
    pend_busy_poll_limit: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=10_000,
        zero="off",
        doc="With pend: microseconds that a wait polls the driver of the NIC queue that datagrams come from before it "
        "sleeps (preferred busy polling of epoll, Linux 6.9). While they come, a queue's interrupts stay off where "
        "`umstack nic init --prefer-busy-poll` has set irq-suspend-timeout (Linux 6.13). Turns link_gro off.",
    )
    pend_coalescing_limit_ns: int = option(
        Kind.MILLISECONDS,
        ours=2,
        maximum=100,
        zero="never",
        doc="With pend: how long under load (some 80 thousand datagrams a second) what comes may gather before the "
        "context takes it, 0.3 ms at most over sockets. Over rings it grows to this while a ring is far from full. "
        "Longer costs less processor time, shorter delays less.",
    )
    multiple_receive_maximum_datagrams: int = option(
        Kind.INTEGER,
        um=0,
        ours=64,
        maximum=1024,
        zero="one at a time",
        reason="A system call for each datagram halves the rate a receiver can take.",
        doc="Most datagrams taken from one socket in one go (recvmmsg) before the next session has its turn.",
    )
    link: str = option(
        Kind.CHOICE,
        ours="socket",
        choices=("auto", "socket", "xdp", "zero-copy", "native", "generic"),
        doc="How data travels: by kernel sockets; by AF_XDP rings (`xdp`: the best of the three modes that follow); "
        "or by the best this host can do, which is never refused. Rings have the interface to themselves, and what "
        "leaves by them does not reach receivers on the same host, so they have to be asked for.",
    )
    link_gso: bool = option(
        Kind.SWITCH,
        ours=1,
        doc="Let the socket link hand runs of datagrams to the kernel as one (UDP GSO). "
        "Captures on the sender then show the run as one datagram; 0 keeps them readable.",
    )
    link_gro: bool = option(
        Kind.SWITCH,
        ours=1,
        doc="Let the socket link take runs of datagrams from the kernel as one (UDP GRO).",
    )
    link_xdp_queues: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=64,
        zero="all",
        doc="Receive queues of the interface the AF_XDP link opens rings on, from the first on.",
    )
    link_xdp_receive_frames: int = option(
        Kind.INTEGER,
        ours=4096,
        minimum=64,
        maximum=65536,
        doc="Datagrams that can wait in the rings of one queue, rounded up to a power of two: "
        "what a receiver may fall behind in a burst. They are locked memory, 2048 or 4096 bytes each.",
    )
    link_xdp_checksum: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="Verify the UDP checksum of datagrams from the rings. NICs drop frames damaged on the wire by "
        "themselves; this finds damage on the way to it.",
    )
    link_xdp_busy_poll: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=10_000,
        zero="off",
        doc="Preferred busy polling: microseconds a receive that finds the rings empty lets the driver work.",
    )

    link_xdp_nic_timestamps: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="Over AF_XDP rings, have the NIC's driver give its receive timestamp of every datagram, where it can "
        "(`umstack doctor` says so). Needs Linux 6.3 and a native mode; the statistics say what is in effect.",
    )
    link_xdp_broker: str = option(
        Kind.TEXT,
        ours="/run/umstack/xdp.sock",
        doc="Socket of the broker that opens the AF_XDP link for a process without the capabilities "
        "(`umstack broker`, docs/privileges.md). A process that has them does without.",
    )

    # Interface

    default_interface: str = option(
        Kind.TEXT,
        um="0.0.0.0",
        doc="Interface to use: a name, an IPv4 address or a network (10.1.0.0/16). "
        "0.0.0.0 is the first multicast interface that is not loopback.",
    )
    resolver_multicast_interface: str = option(
        Kind.TEXT,
        um="0.0.0.0",
        doc="Interface for topic resolution and LBT-RM, in the same forms. 0.0.0.0 is default_interface.",
    )
    resolver_multicast_ttl: int = option(
        Kind.INTEGER, um=16, maximum=255, doc="IP time to live of topic resolution and LBT-RM datagrams."
    )

    # Datagram sizes

    transport_lbtrm_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=8192,
        ours=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero=_FROM_MTU,
        reason="A datagram above the MTU is split by IP, and the loss of one part loses it all. "
        "The largest that is never split is the MTU minus 28, and it follows the MTU.",
        doc="Largest UDP payload of an LBT-RM datagram.",
    )
    transport_lbtrm_source_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="as transport_lbtrm_datagram_max_size",
        doc="The same, for datagrams sent.",
    )
    transport_lbtrm_receiver_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="whatever comes",
        doc="Longest datagram received: a longer one is dropped and counted (dgrams_dropped_too_long), and what it "
        "carries is lost (UX-26).",
    )
    dynamic_fragmentation_reduction: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        choices=(1,),
        reason="Headers are always sized exactly: there is no other way of fragmenting here.",
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
        reason="10 Mbit/s surprises nearly everybody as sends that block for no visible cause.",
        doc="Limit for new and retransmitted data of all LBT-RM sessions of the context.",
    )
    transport_lbtrm_retransmit_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=5_000_000,
        ours=100_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="A tenth of the data rate limit bounds what NAKs can cause; more loss than that is a fault.",
        doc="Limit for retransmissions; keep it below the data rate limit. One receiver may cause at most a quarter "
        "of it, and all that send no status messages together a tenth; 0 is no limit for anybody.",
    )
    transport_lbtrm_rate_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10,
        minimum="0.1",
        maximum=1000,
        doc="Slice of time the rate limits are divided into. Long slices make bursts, short ones "
        "cost wake-ups.",
    )
    transport_lbtrm_receiver_timestamp: bool = option(
        Kind.SWITCH,
        um=0,
        doc="Take the receive time of a datagram from the kernel instead of the context's clock: the socket's "
        "timestamp, or over AF_XDP rings the time at which the XDP program saw the frame.",
    )

    # LBT-RM addressing

    transport_lbtrm_multicast_address_low: str = option(
        Kind.MULTICAST_GROUP, um="224.10.10.10", doc="First group of the pool new sessions take theirs from."
    )
    transport_lbtrm_multicast_address_high: str = option(
        Kind.MULTICAST_GROUP, um="224.10.10.14", doc="Last group of that pool."
    )
    transport_lbtrm_source_port_low: int = option(
        Kind.INTEGER,
        um=14390,
        minimum=1,
        maximum=65535,
        doc="First UDP port for receiving NAKs, one a session.",
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
        doc="Largest UDP payload of an LBT-RU datagram; no more than that of LBT-RM.",
    )
    transport_lbtru_source_datagram_max_size_bytes: int = option(
        Kind.BYTES,
        um=0,
        minimum=500,
        maximum=UDP_PAYLOAD_MAXIMUM_BYTES,
        zero="as transport_lbtru_datagram_max_size",
        doc="The same, for datagrams sent.",
    )
    transport_lbtru_receiver_socket_buffer_bytes: int = option(
        Kind.BYTES, um=8388608, minimum=4096, maximum=2**30, doc="Receive buffer of LBT-RU sockets."
    )
    transport_lbtru_source_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=1048576,
        minimum=4096,
        maximum=2**30,
        doc="Send buffer of LBT-RU sockets; UM's advice is 1000000 and 100000 for each receiver.",
    )
    transport_lbtru_data_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=10_000_000,
        ours=1_000_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="As transport_lbtrm_data_rate_limit.",
        doc="Limit for new data of all LBT-RU sessions of the context. Every receiver's copy counts.",
    )
    transport_lbtru_retransmit_rate_limit_bits_per_second: int = option(
        Kind.BITS_PER_SECOND,
        um=5_000_000,
        ours=100_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        reason="As transport_lbtrm_retransmit_rate_limit.",
        doc="Limit for their retransmissions, which go to every receiver; shared out as LBT-RM's.",
    )
    transport_lbtru_rate_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=100,
        ours=10,
        minimum="0.1",
        maximum=1000,
        reason="As transport_lbtrm_rate_interval: what is allowed in 100 ms would leave in one burst.",
        doc="Slice of time these rate limits are divided into.",
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
        doc="LBT-RU sessions that sources without a transport_lbtru_port open; then they share those in turn.",
    )

    # Authentication

    authentication_scope: str = option(
        Kind.CHOICE,
        ours="none",
        choices=("none", "control", "all"),
        doc="What carries a tag made with a key of authentication_key_file, and has to carry a right one to be "
        "accepted: control messages (SM, NAK, NCF, status messages, topic resolution), or DATA as well. The same on "
        "all hosts (docs/authentication.md).",
    )
    authentication_key_file: str = option(
        Kind.TEXT,
        ours="none",
        doc="File of the keys, readable by its owner only, made by `umstack key new`. It is loaded again when it "
        "changes.",
    )
    authentication_time_tolerance_ns: int = option(
        Kind.SECONDS,
        ours=60,
        minimum=1,
        maximum=86400,
        doc="How far the clock of a sender may be from this host's. A datagram that was recorded is refused as "
        "replayed, and after this long in any case.",
    )

    # Delivery

    delivery_control_maximum_total_map_entries: int = option(
        Kind.INTEGER,
        um=200000,
        minimum=1,
        maximum=2**26,
        doc="Most entries an order map holds, for each topic of each source. UM's 0 (no bound) does "
        "not exist.",
    )
    delivery_hold_datagrams: int = option(
        Kind.INTEGER,
        ours=16384,
        minimum=64,
        maximum=2**24,
        doc="Datagrams the context can keep for messages that wait for a missing one or for a full queue.",
    )

    # Topic resolution

    resolver_multicast_address: str = option(
        Kind.MULTICAST_GROUP, um="224.9.10.11", doc="Group of topic resolution."
    )
    resolver_multicast_port: int = option(
        Kind.INTEGER, um=12965, minimum=1, maximum=65535, doc="UDP port of topic resolution."
    )
    resolver_multicast_incoming_address: str = option(
        Kind.MULTICAST_GROUP, um="0.0.0.0", doc="Group to listen to. 0.0.0.0 is resolver_multicast_address."
    )
    resolver_multicast_incoming_port: int = option(
        Kind.INTEGER, um=0, maximum=65535, zero="resolver_multicast_port", doc="Port to listen to."
    )
    resolver_multicast_outgoing_address: str = option(
        Kind.MULTICAST_GROUP, um="0.0.0.0", doc="Group to send to. 0.0.0.0 is resolver_multicast_address."
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
        doc="Resolution daemons (`umstack resolver`), ADDRESS[:PORT] with commas between: topic resolution goes "
        "through them and not by multicast, and the first that answers is used. none: by multicast.",
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
        doc="A resolution daemon that from which nothing was received for so long is not used.",
    )
    resolver_unicast_keepalive_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        minimum=10,
        maximum=3_600_000,
        doc="Between keepalives to each resolution daemon, which answers them.",
    )
    resolver_cache: bool = option(
        Kind.SWITCH,
        um=1,
        doc="Remember sources of topics nobody here wants yet, so that a new receiver joins them at "
        "once (UX-16).",
    )
    resolver_cache_maximum_entries: int = option(
        Kind.INTEGER,
        ours=100000,
        minimum=1,
        maximum=2**24,
        doc="Most sources remembered; one that was not advertised for long makes space.",
    )
    resolver_initial_advertisements_per_second: int = option(
        Kind.INTEGER,
        um=1000,
        maximum=10**7,
        zero=_NO_LIMIT,
        doc="Limit for advertisements of the initial phase.",
    )
    resolver_initial_advertisement_bps: int = option(
        Kind.INTEGER,
        um=1_000_000,
        maximum=10**12,
        zero=_NO_LIMIT,
        doc="The same in bit/s.",
    )
    resolver_sustain_advertisements_per_second: int = option(
        Kind.INTEGER,
        um=0,
        maximum=10**7,
        zero=_NO_LIMIT,
        doc="Limit for advertisements of the sustaining phase.",
    )
    resolver_sustain_advertisement_bps: int = option(
        Kind.INTEGER, um=1_000_000, maximum=10**12, zero=_NO_LIMIT, doc="The same in bit/s."
    )
    resolver_initial_queries_per_second: int = option(
        Kind.INTEGER, um=1000, maximum=10**7, zero=_NO_LIMIT, doc="Limit for queries of the initial phase."
    )
    resolver_initial_query_bps: int = option(
        Kind.INTEGER, um=1_000_000, maximum=10**12, zero=_NO_LIMIT, doc="The same in bit/s."
    )
    resolver_sustain_queries_per_second: int = option(
        Kind.INTEGER, um=0, maximum=10**7, zero=_NO_LIMIT, doc="Limit for queries of the sustaining phase."
    )
    resolver_sustain_query_bps: int = option(
        Kind.INTEGER, um=1_000_000, maximum=10**12, zero=_NO_LIMIT, doc="The same in bit/s."
    )

    resolver_wildcard_queries_per_second: int = option(
        Kind.INTEGER, um=0, maximum=10**7, zero=_NO_LIMIT, doc="Limit for wildcard queries."
    )
    resolver_wildcard_query_bps: int = option(
        Kind.INTEGER, um=1_000_000, maximum=10**12, zero=_NO_LIMIT, doc="The same in bit/s."
    )

    @property
    def interface(self) -> str:
        """The interface topic resolution and LBT-RM use; 0.0.0.0 leaves the choice to the context."""
        chosen = self.resolver_multicast_interface
        return self.default_interface if chosen == "0.0.0.0" else chosen

    @property
    def source_datagram_size_bytes(self) -> int:
        """Configured size of datagrams sent, 0 for the one the MTU gives."""
        return (
            self.transport_lbtrm_source_datagram_max_size_bytes
            or self.transport_lbtrm_datagram_max_size_bytes
        )

    @property
    def lbtru_source_datagram_size_bytes(self) -> int:
        """Configured size of LBT-RU datagrams sent, 0 for that of LBT-RM."""
        return (
            self.transport_lbtru_source_datagram_max_size_bytes
            or self.transport_lbtru_datagram_max_size_bytes
        )

    @property
    def resolver_daemons(self) -> tuple[tuple[str, int], ...]:
        """Addresses and ports of the resolution daemons; empty for topic resolution by multicast."""
        if self.resolver_unicast_daemon == "none":
            return ()
        return tuple(map(_daemon, re.split(r"[,;\s]+", self.resolver_unicast_daemon)))

    @property
    def resolver_incoming(self) -> tuple[str, int]:
        """Group and port topic resolution listens to."""
        address = self.resolver_multicast_incoming_address
        return (
            self.resolver_multicast_address if address == "0.0.0.0" else address,
            self.resolver_multicast_incoming_port or self.resolver_multicast_port,
        )

    @property
    def resolver_outgoing(self) -> tuple[str, int]:
        """Group and port topic resolution sends to."""
        address = self.resolver_multicast_outgoing_address
        return (
            self.resolver_multicast_address if address == "0.0.0.0" else address,
            self.resolver_multicast_outgoing_port or self.resolver_multicast_port,
        )


def _daemon(text: str) -> tuple[str, int]:
    """One daemon. An interface and a local port before `->`, as Ultra Messaging has them, are left to the context."""
    host, _, port = text.rpartition("->")[2].partition(":")
    try:
        address = str(ipaddress.IPv4Address(host))
        number = int(port) if port else RESOLVER_DAEMON_PORT
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        raise OptionError(
            f"context option resolver_unicast_daemon: {text!r} is no daemon",
            hint="give ADDRESS or ADDRESS:PORT",
        )
    return address, number
