"""The extension modules: the headers that each exposes to Python, and the C files that each is built from.

Extend this list when a header is added or moved. A header that exists only for Python is listed without names
(`Header("sim/sim.h")`). For a header that C uses too, list the names that Python needs. ffi/declarations.py reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from declarations import Header

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Module:
    """One cffi extension module."""

    name: str
    sources: tuple[str, ...]
    """Folders whose C files all belong to the module, and single files."""
    headers: tuple[Header, ...]
    cdefs: tuple[str, ...] = ()
    """Files of ffi/cdef/, for declarations that are in no header of ours."""
    libraries: tuple[str, ...] = ()
    includes: Module | None = None
    """The module whose types and functions this one shares; it is imported first."""

    def source_files(self) -> list[Path]:
        """Return the C files, sorted by name so that the build is reproducible."""
        paths = [ROOT / name for name in self.sources]
        found = {file for path in paths for file in (path.rglob("*.c") if path.is_dir() else [path])}
        return sorted(found)


RAW_HEADERS = (
    Header("bench/raw_udp.h", names=(
        "UM_RAW_COUNTER_BYTES", "UM_RAW_END_BYTES", "UM_RAW_MAX_DATAGRAM_BYTES", "UM_RAW_MAX_SEGMENT_COUNT",
        "UM_RAW_MAX_BATCH_COUNT", "um_raw_wait", "um_raw_send_config", "um_raw_send_result", "um_raw_receive_config",
        "um_raw_receive_result",
    )),
    Header("bench/raw_round_trips.h", names=("um_raw_ping_result",)),
    Header("bench/raw_pingpong.h", names=("um_raw_pingpong_config", "um_raw_echo_result")),
)  # fmt: skip

CORE = Module(
    "umstack._core",
    ("ffi/core", "ffi/os", "ffi/authentication", "ffi/capture/reading", "ffi/capture/writing", "ffi/io",
     "ffi/store"),
    (
        Header("core/foundation/base.h", names=("um_publish_result",)),
        Header("core/foundation/address.h", names=("um_ip", "um_address")),
        Header("core/wire/authentication.h", names=(
            "UM_TRAILER_BYTES", "um_authentication_scope", "um_tag_status",
        )),
        Header("authentication/mac.h", names=(
            "UM_KEY_BYTES", "UM_KEYS_PER_SET", "um_key", "um_key_set", "um_mac_library",
        )),
        Header("authentication/resolution.h"),
        Header("core/wire/stream_record.h", names=(
            "UM_RECORD_HEADER_BYTES", "UM_RECORD_BYTES_MAX", "um_stream_kind", "um_stream_greeting",
            "um_stream_greeting_read", "um_stream_record_bytes",
        )),
        Header("authentication/stream_tags.h", names=(
            "um_stream_tags", "um_stream_greeting_write", "um_stream_key_check", "um_stream_tags_open",
            "um_stream_tags_close", "um_stream_tags_seal", "um_stream_tags_verify",
        )),
        Header("core/wire/datagram_size.h", names=("UM_DATAGRAM_BYTES_MAX",)),
        Header("core/foundation/internet.h", names=("UM_IPV4_UDP_HEADER_BYTES", "UM_IPV6_UDP_HEADER_BYTES")),
        Header("core/wire/lbtrm.h", names=("UM_LBTRM_DATA_BYTES",)),
        Header("core/wire/lbmc.h", names=(
            "UM_MESSAGE_FRAGMENT", "UM_MESSAGE_HOT_FAILOVER", "UM_MESSAGE_OTR", "UM_MESSAGE_REQUEST",
            "UM_LBMC_OPTION_DATA", "UM_LBMC_OPTION_FRAGMENT", "UM_LBMC_OPTION_CHAIN", "UM_LBMC_FRAGMENT_BYTES",
            "UM_MESSAGE_PROPERTIES", "UM_MESSAGE_RETRANSMIT", "um_request", "um_lbmc_hot_failover", "um_lbmc_extras",
        )),
        Header("core/wire/message_properties.h"),
        Header("core/source/flow_control.h", names=("um_flow_control_policy", "um_network", "UM_FLOW_NETWORKS_MAX")),
        Header("core/source/receiver_accounting.h", names=("UM_ACCOUNTS_MAX", "um_receiver_account")),
        Header("core/source/source_events.h", names=(
            "UM_SOURCE_EVENTS_MAX", "UM_SOURCE_INTERFACE_BYTES", "um_source_event_kind", "um_source_event",
        )),
        Header("core/source/publication_log.h", names=("UM_LOG_TERM_BYTES_MIN",)),
        Header("core/delivery/message_queue.h", names=(
            "UM_QUEUE_BLOCKS_MAX", "um_row_kind", "um_row", "um_rows", "um_properties_place",
            *(f"um_block.{column}" for column in (
                "offsets", "sequence_numbers", "first_sequence_numbers", "fragment_offsets", "message_lengths",
                "sources", "received_ns", "sent_ns", "flags", "requests", "properties", "payload",
            )),
        ), inline=("um_queue_release", "um_row_kind_of")),
        Header("core/delivery/hot_failover.h", names=("um_hot_failover_config", "UM_HF_INPUTS_MAX")),
        Header("core/delivery/delivery_controller.h", names=("um_receiver_config",)),
        Header("core/wire/session_id.h", names=("um_transport", "um_session_id")),
        Header("core/foundation/time_histogram.h", names=(
            "UM_RECOVERY_OCTAVE_FIRST", "UM_RECOVERY_BUCKETS", "UM_LATENCY_OCTAVE_FIRST", "UM_LATENCY_BUCKETS",
        )),
        Header("core/foundation/adaptive_spin.h", names=("um_adaptive_spin",), inline=(
            "um_adaptive_spin_init", "um_adaptive_spin_until_ns", "um_adaptive_spin_on_event",
        )),
        Header("core/receiver/recovery_timing.h", names=("um_adaptive_timer",)),
        Header("core/foundation/siphash.h", names=("um_siphash_key",)),
        Header("core/resolution/relayed_records.h"),
        Header("core/resolution/resolver_cache.h"),
        Header("core/source/source_timing.h", names=("um_adaptive_source_timer",)),
        Header("core/receiver/receiver_session.h", names=("um_nak_cutoff", "um_receiver_session_config")),
        Header("core/source/source_state.h", names=("UM_SEND_FLUSH", "um_source_session_config")),
        Header("core/source/source.h", names=("um_source_config", "um_source_claim", "um_relayed_numbers")),
        Header("os/memory.h", names=("um_unmap",)),
        Header("io/event_queue.h"),
        Header("io/datagram_batch.h"),
        Header("io/authentication.h", names=("UM_KEY_SETS_MAX",)),
        Header("io/publication_session.h"),
        Header("io/publication.h"),
        Header("io/flight.h"),
        Header("io/subscription.h"),
        Header("core/source/retention.h", names=("um_retention_config",)),
        Header("core/wire/range_request.h", inline=("um_request_index",)),
        Header("core/receiver/fetch.h", names=("um_fetch_plan", "um_fetch_connection", "um_fetch", "um_fetch_action",
                                      "um_fetch_begin",
                                      "um_fetch_on_connect", "um_fetch_request_range", "um_fetch_on_disconnect")),
        Header("core/receiver/fetch_runs.h", names=("um_fetch_next_run",), inline=("um_fetch_topic_key",)),
        Header("io/late_joining.h"),
        Header("io/receiving.h", names=("UM_RECEIVING_GROUPS_MAX", "um_begun_recovery")),
        Header("io/tcp_server.h", names=("um_tcp_source_config",)),
        Header("core/ipc/shared_log.h", names=("UM_SHARED_CAPACITY_MIN",)),
        Header("io/ipc_server.h", names=("um_ipc_source_config",)),
        Header("io/context.h"),
        Header("io/relay.h"),
        Header("io/statistics.h"),
        Header("capture/writing/datagram_frame.h", names=("um_datagram_frame",)),
        Header("capture/writing/pcapng_writer.h", names=(
            "UM_PCAPNG_LINK_ETHERNET", "UM_PCAPNG_UNKNOWN", "um_pcapng_direction", "um_pcapng_packet",
            "um_pcapng_open", "um_pcapng_add_interface", "um_pcapng_write", "um_pcapng_close",
        ), sized=("um_pcapng_writer",)),
        Header("capture/writing/tap.h", names=("um_tap_config", "um_tap_counters")),
        Header("capture/writing/frame_merge.h", names=("um_frame_merge_config",)),
        Header("capture/writing/interface_capture.h"),
        Header("capture/reading/streams.h", names=(
            "um_stream_findings", "um_streams_set_ports", "um_streams_read_findings", "um_streams_stored_bytes",
            "um_streams_store", "um_streams_load",
        ), sized=("um_streams",)),
        Header("capture/reading/fragments.h", names=(
            "um_fragment_findings", "um_fragments_give_up", "um_fragments_read_findings", "um_fragments_stored_bytes",
            "um_fragments_store", "um_fragments_load",
        ), sized=("um_fragments",)),
        Header("capture/reading/copies.h", names=(
            "UM_COPIES_WITHIN_NS", "um_copies_stored_bytes", "um_copies_store", "um_copies_load",
            "um_copies_is_settled",
        ), sized=("um_copies",)),
        Header("capture/reading/packet.h"),
        Header("capture/reading/container.h"),
        Header("capture/reading/tally.h"),
        Header("capture/reading/rows.h"),
        Header("capture/reading/generate.h"),
        Header("store/crc32c.h"),
        Header("store/record.h", names=(
            "UM_STORE_FORMAT_VERSION", "UM_STORE_RECORD_HEADER_BYTES", "UM_STORE_MESSAGE_BYTES_MAX",
            "UM_STORE_SOURCES_MAX", "um_store_record_flags", "um_store_salt",
        )),
        Header("store/runs.h"),
        Header("store/staging.h"),
        Header("store/scan.h"),
        Header("store/segment.h"),
        Header("store/span_index.h"),
    ),
    cdefs=("ffi/cdef/kernel.h",),
    libraries=("crypto",),
)  # fmt: skip

# The simulator and the raw baselines. The module contains the core's object code again. Core files have no global state
# (a test checks this), so a handle of one module is valid in the other.
SIM_BENCH = Module(
    "umstack._sim_bench",
    ("ffi/core", "ffi/os", "ffi/authentication", "ffi/capture/writing", "ffi/io", "ffi/sim", "ffi/bench"),
    (
        Header("sim/sim.h"),
        Header("sim/run.h"),
        *RAW_HEADERS,
        Header("bench/raw_udp.h", names=(
            "um_raw_open_sender", "um_raw_open_receiver", "um_raw_buffer_bytes", "um_raw_send", "um_raw_receive",
        )),
        Header("bench/raw_pingpong.h", names=("um_raw_open_pingpong", "um_raw_ping", "um_raw_echo")),
        Header("bench/raw_order.h", names=("um_raw_order", "um_raw_order_init"),
               inline=("um_raw_order_stamp", "um_raw_order_note")),
        Header("bench/bare_ring.h"),
        Header("bench/echo.h"),
        Header("bench/peer_zmq.h"),
        Header("bench/stream_check.h"),
    ),
    libraries=("crypto",),
    includes=CORE,
)  # fmt: skip

LIBBPF = Module(
    "umstack_xdp._libbpf",
    ("ffi/bpf",),
    (
        Header("../bpf/egress_tap.h"),
        Header("../bpf/steering.h"),
        Header("bpf/bpf_map.h"),
        Header("bpf/bpf_object.h"),
        Header("bpf/bpf_test_run.h"),
        Header("bpf/mirror_device.h"),
        Header("bpf/tcx_attachment.h"),
        Header("bpf/xdp_attachment.h"),
    ),
    libraries=("bpf", "elf"),
)

XSK = Module(
    "umstack_xdp._xsk",
    ("ffi/xsk", "ffi/bench/raw_order.c", "ffi/bench/raw_round_trips.c"),
    (
        *RAW_HEADERS,
        Header("xsk/rings_config.h", names=("UM_XSK_TIMES_BYTES", "um_xsk_mode", "um_xsk_config", "um_xsk_facts")),
        Header("xsk/rings.h", names=(
            "um_xsk_rings_open", "um_xsk_rings_adopt", "um_xsk_rings_close", "um_xsk_rings_failed_step",
            "um_xsk_rings_base", "um_xsk_rings_learn_address", "um_xsk_rings_send_by_socket",
            "um_xsk_rings_facts", "um_xsk_rings_socket", "um_xsk_rings_memory", "um_xsk_rings_received",
        )),
        Header("xsk/bonded_rings.h", names=(
            "um_bonded_rings_create", "um_bonded_rings_free", "um_bonded_rings_base", "um_bonded_rings_send_by",
            "um_bonded_rings_sends_by",
        )),
        Header("xsk/raw_xdp.h", names=(
            "um_xsk_raw_send", "um_xsk_raw_receive", "um_xsk_raw_ping", "um_xsk_raw_echo",
        )),
    ),
    libraries=("xdp", "bpf", "elf"),
)  # fmt: skip

MODULES = (CORE, SIM_BENCH, LIBBPF, XSK)
