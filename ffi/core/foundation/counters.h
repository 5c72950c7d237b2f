/* clang-format off */
/* Made from umstack/telemetry/counters.toml by `python -m umstack.telemetry.counters --c-header`; edit that file.
 *
 * Statistics of the stack (UM's names), one plain struct per kind of object, embedded in and owned by that
 * object. One thread at a time writes a field. Any thread may read at any time: a figure may be a moment
 * old and a set of them is not one instant. `_reset` is for the writer, at creation and on request: zero,
 * and all ones for minima. One file, because it is made from one schema. */
#ifndef UM_CORE_COUNTERS_H
#define UM_CORE_COUNTERS_H

#include <stdint.h>

/* The sending side of one transport session: datagrams, transmission window, NAK service, flow control. */
typedef struct um_source_transport_counters {
    /* counter, datagrams: Data datagrams sent for the first time. */
    uint64_t msgs_sent;
    /* counter, bytes: Bytes of data datagrams sent for the first time, transport and message headers included. */
    uint64_t bytes_sent;
    /* snapshot, datagrams: Datagrams held in the transmission window. */
    uint64_t txw_msgs;
    /* snapshot, bytes: Bytes held in the transmission window. */
    uint64_t txw_bytes;
    /* counter, datagrams: NAK datagrams received. */
    uint64_t nak_pckts_rcved;
    /* counter, NAKs: Sequence numbers NAKed in the NAK datagrams received. */
    uint64_t naks_rcved;
    /* counter, NAKs: NAKs refused because the datagram was retransmitted less than the ignore interval ago (NCF reason ignored). */
    uint64_t naks_ignored;
    /* counter, NAKs: NAKs refused because the retransmit rate limiter and its queue were full (NCF reason shed). */
    uint64_t naks_shed;
    /* counter, NAKs: NAKs delayed by the retransmit rate limiter, with the retransmission queued (NCF reason rx_delay). */
    uint64_t naks_rx_delay_ignored;
    /* counter, datagrams: Datagrams retransmitted. */
    uint64_t rxs_sent;
    /* counter, bytes: Bytes of datagrams retransmitted. */
    uint64_t rx_bytes_sent;
    /* snapshot, datagrams: Datagrams waiting for the data rate limiter. */
    uint64_t rctlr_data_msgs;
    /* snapshot, datagrams: Datagrams waiting for the retransmit rate limiter. */
    uint64_t rctlr_rx_msgs;
    /* counter, NAKs: NAKs dropped without a response: an NCF for the sequence number was sent in the same ignore interval (UM-130). */
    uint64_t naks_suppressed;
    /* counter, NAKs: NAKs served within the ignore interval, because the receiver has reported that the retransmission before is lost. */
    uint64_t naks_with_evidence;
    /* counter, datagrams: Reports to the group of the retransmissions that were sent, from which receivers learn that one was lost. */
    uint64_t repair_reports_sent;
    /* counter, NAKs: NAKs dropped without a response: the sequence number has left the transmission window. */
    uint64_t naks_out_of_window;
    /* counter, NAKs: NAKs dropped without a response: the sequence number was never sent. */
    uint64_t nak_unknown_sqn;
    /* counter, datagrams: NCF datagrams sent. */
    uint64_t ncf_pckts_sent;
    /* counter, NCFs: Sequence numbers in the NCF datagrams sent. */
    uint64_t ncfs_sent;
    /* counter, datagrams: Session messages (idle keepalives) sent. */
    uint64_t session_messages_sent;
    /* counter, records: Topic sequence number information records sent. */
    uint64_t tsnis_sent;
    /* counter, batches: Batches sent because they reached implicit_batching_minimum_length. */
    uint64_t flushes_length;
    /* counter, batches: Batches sent because the next message would not fit the datagram. */
    uint64_t flushes_full;
    /* counter, batches: Batches sent because implicit_batching_interval ended. */
    uint64_t flushes_interval;
    /* counter, batches: Batches sent because the application requested a flush. */
    uint64_t flushes_explicit;
    /* snapshot, bytes: Publication log: position reserved by publishers, in bytes. */
    uint64_t pub_pos;
    /* snapshot, bytes: Publication log: limit in bytes; publishers do not start a message beyond it. */
    uint64_t pub_lmt;
    /* snapshot, bytes: Publication log: position up to which bytes were sent. */
    uint64_t snd_pos;
    /* snapshot, bytes: Publication log: limit in bytes up to which flow control lets the sender send. */
    uint64_t snd_lmt;
    /* counter, episodes: Times the sender stopped at snd_lmt with data to send. */
    uint64_t snd_bpe;
    /* counter, sends: Publish attempts refused or blocked at pub_lmt. */
    uint64_t back_pressured;
    /* counter, sends: Publish attempts refused because flow control knows no receiver. */
    uint64_t not_connected;
    /* counter, claims: Abandoned claims replaced by padding after publication_unblock_timeout. */
    uint64_t unblocked_publications;
    /* counter, terms: Times the publication log rotated to its next term. */
    uint64_t term_rotations;
    /* snapshot, receivers: Receivers whose status messages flow control currently uses. */
    uint64_t receivers_known;
    /* counter, receivers: Receivers dropped after flow_control_receiver_timeout. */
    uint64_t receivers_timed_out;
    /* counter, receivers: Status messages of new receivers refused because the receiver table is full. */
    uint64_t receivers_refused;
    /* counter, receivers: Receivers excluded from flow control: they held the sender for flow_control_stall_timeout without advancing. */
    uint64_t receivers_stalled;
    /* counter, events: Reports by receivers of a full queue: the reader is slow and holds the source back. */
    uint64_t receivers_slow;
    /* counter, events: Reports by receivers of a queue that was full for too long: it drops messages and no longer holds the source back. */
    uint64_t receivers_cut_loose;
    /* counter, messages: Status messages dropped: the sender is not in flow_control_receivers_allowed. */
    uint64_t status_not_allowed;
    /* counter, messages: Status messages of unknown receivers without the cookie of a session message; answered with a session message. */
    uint64_t status_unproven;
    /* counter, NAKs: NAKs dropped without a response: the receiver, or all unknown senders together, used up its share of the retransmissions. */
    uint64_t naks_over_share;
    /* counter, NAKs: NAKs dropped without a response: the receiver is cut off (UX-21). */
    uint64_t naks_cut_off;
    /* counter, datagrams: Datagrams that receivers reported as lost for good, over all receivers; their positions pass such datagrams. */
    uint64_t datagrams_given_up;
    /* counter, messages: Flow-control status messages accepted. */
    uint64_t status_messages_received;
    /* counter, messages: Status messages dropped: bad layout. */
    uint64_t status_malformed;
    /* counter, messages: Status messages dropped: their position was never sent or is too old. */
    uint64_t status_out_of_range;
    /* counter, datagrams: Datagrams dropped at the NAK port: shorter than their headers or counts require. */
    uint64_t dgrams_dropped_size;
    /* counter, datagrams: Datagrams dropped at the NAK port: a type that the NAK port does not serve. */
    uint64_t dgrams_dropped_type;
    /* counter, datagrams: Datagrams dropped at the NAK port: unknown version. */
    uint64_t dgrams_dropped_version;
    /* counter, datagrams: Datagrams dropped at the NAK port: contradictory header. */
    uint64_t dgrams_dropped_hdr;
    /* counter, datagrams: Datagrams dropped at the NAK port: wrong session id. */
    uint64_t dgrams_dropped_sid;
    /* counter, datagrams: Datagrams dropped at the NAK port: any other reason. */
    uint64_t dgrams_dropped_other;
    /* counter, datagrams: Datagrams dropped: no authentication trailer although the session's keys require one. TCP: connections closed because the peer has no key. */
    uint64_t dgrams_dropped_tag_missing;
    /* counter, datagrams: Datagrams dropped: the trailer names a key that is not in use here. TCP: connections closed because of the peer's key. */
    uint64_t dgrams_dropped_tag_key;
    /* counter, datagrams: Datagrams dropped: the tag is wrong, because the datagram was changed or made without the key. TCP: connections closed. */
    uint64_t dgrams_dropped_tag_wrong;
    /* counter, datagrams: Datagrams dropped: the trailer's time differs from this host's clock by more than authentication_time_tolerance. */
    uint64_t dgrams_dropped_tag_stale;
    /* counter, datagrams: Datagrams dropped: received before, or too late to rule that out. TCP: connections closed because a record was repeated or missing. */
    uint64_t dgrams_dropped_tag_replayed;
    /* counter, datagrams: Datagrams dropped: encrypted although this host's option encryption is none, or the other way round. TCP: connections closed for this. */
    uint64_t dgrams_dropped_tag_encryption;
    /* counter, datagrams: Control messages sent that report the number of receivers and their longest round trip. */
    uint64_t group_reports_sent;
    /* counter, datagrams: Padded session messages sent to find the largest datagram that reaches every receiver. */
    uint64_t path_probes_sent;
    /* snapshot, bytes: Largest datagram that the session sends now: what the interface and the path to every known receiver carry. */
    uint64_t path_datagram_bytes;
    /* counter, datagrams: Datagrams longer than the path, sent in pieces that fit. */
    uint64_t datagrams_sent_in_pieces;
    /* snapshot, receivers: Receivers that sent a status message in the last one to two seconds; 0 with recovery_timing fixed. */
    uint64_t group_receivers;
    /* snapshot, ms x 1000000: Longest time from NAK to retransmission, plus two variances, that a receiver reported in the last one to two seconds. */
    uint64_t group_round_trip;
    /* snapshot, ms x 1000000: Ignore interval in use for a receiver that reports no round-trip time. */
    uint64_t ignore_interval;
    /* snapshot, ms x 1000000: Idle time before the first session message, as currently in use. */
    uint64_t sm_first_interval;
    /* snapshot, bits: Bit mask of adaptive timers: 1 the ignore interval, 2 the first session message, 4 group reports are sent. */
    uint64_t timers_adaptive;
    /* snapshot, receivers: LBT-RU, LBT-TCP, LBT-IPC: receivers connected now. */
    uint64_t num_clients;
    /* snapshot, bytes: LBT-TCP: bytes waiting to be written to receivers' connections, over all receivers. */
    uint64_t bytes_buffered;
    /* counter, receivers: LBT-RU, LBT-TCP, LBT-IPC: receivers that connected. */
    uint64_t clients_connected;
    /* counter, receivers: LBT-RU: receivers that left or acknowledged nothing for transport_lbtru_client_activity_timeout. LBT-TCP, LBT-IPC: receivers that left or whose connection failed. */
    uint64_t clients_disconnected;
    /* counter, messages: LBT-TCP, source-paced: messages not sent to a receiver that was too slow, over all receivers. */
    uint64_t client_messages_lost;
    /* counter, connections: LBT-TCP, LBT-IPC: connections closed because they named another session, sent a wrong log key, invalid data or nothing, or exceeded a limit. */
    uint64_t connections_refused;
    /* counter, datagrams: LBT-RU: acknowledgements of new receivers refused because transport_lbtru_maximum_clients are connected. */
    uint64_t clients_refused;
    /* counter, datagrams: LBT-RU: connection requests received. */
    uint64_t creqs_rcved;
    /* counter, datagrams: LBT-RU: acknowledgements received. */
    uint64_t acks_rcved;
    /* counter, datagrams: LBT-RU: resets sent to receivers that are not connected, which makes them connect. */
    uint64_t resets_sent;
    /* counter, datagrams: LBT-RU: datagrams dropped: from an address that is not connected, or with another receiver's client id. */
    uint64_t dgrams_dropped_client;
    /* counter, datagrams: LBT-RU: connection requests and resets left unanswered because of the rate limit for unverified addresses. */
    uint64_t connect_answers_limited;
    /* counter, datagrams: LBT-RU: datagrams not sent to receivers that subscribe to no topic in them (transport_source_side_filtering_behavior). */
    uint64_t copies_filtered;
    /* counter, datagrams: LBT-RU: datagrams sent that report to a receiver which datagrams were filtered and which of its subscriptions are in effect. */
    uint64_t filter_reports_sent;
    /* counter, datagrams: LBT-RU: lists of subscribed topics received from receivers. */
    uint64_t interests_rcved;
} um_source_transport_counters;

static inline void um_source_transport_counters_reset(um_source_transport_counters *counters)
{
    *counters = (um_source_transport_counters){0};
}

/* The receiving side of one transport session: loss map, NAK timers, demultiplexing. */
typedef struct um_receiver_transport_counters {
    /* counter, datagrams: Data datagrams accepted, without duplicates and rejected datagrams. */
    uint64_t msgs_rcved;
    /* counter, bytes: Bytes of data datagrams accepted, headers included. */
    uint64_t bytes_rcved;
    /* counter, datagrams: NAK datagrams sent. */
    uint64_t nak_pckts_sent;
    /* counter, NAKs: Sequence numbers NAKed in the NAK datagrams sent. */
    uint64_t naks_sent;
    /* counter, datagrams: Datagrams in gaps when the gap was detected; a datagram that is only reordered counts too. */
    uint64_t lost;
    /* counter, NCFs: Sequence numbers in NCFs with reason ignored. */
    uint64_t ncfs_ignored;
    /* counter, NCFs: Sequence numbers in NCFs with reason shed. */
    uint64_t ncfs_shed;
    /* counter, NCFs: Sequence numbers in NCFs with reason rx_delay. */
    uint64_t ncfs_rx_delay;
    /* counter, NCFs: Sequence numbers in NCFs with any other reason. */
    uint64_t ncfs_unknown;
    /* min, ms x 1000000: Shortest time from detecting a lost datagram to receiving it. */
    uint64_t nak_stm_min;
    /* mean, ms x 1000000: Mean time from detecting a lost datagram to receiving it. */
    uint64_t nak_stm_mean;
    /* max, ms x 1000000: Longest time from detecting a lost datagram to receiving it; close to the NAK generation interval, loss becomes unrecoverable. */
    uint64_t nak_stm_max;
    /* min, NAKs: Fewest NAKs sent for one recovered datagram. */
    uint64_t nak_tx_min;
    /* mean, NAKs x 1000: Mean number of NAKs sent per recovered datagram. */
    uint64_t nak_tx_mean;
    /* max, NAKs: Most NAKs sent for one recovered datagram. */
    uint64_t nak_tx_max;
    /* counter, datagrams: Data datagrams received more than once. */
    uint64_t duplicate_data;
    /* counter, datagrams: Datagrams given up: they left the source's transmission window. */
    uint64_t unrecovered_txw;
    /* counter, datagrams: Datagrams given up: the NAK generation interval ended. */
    uint64_t unrecovered_tmo;
    /* counter, datagrams: Datagrams given up: the retransmission, too, was longer than transport_lbtrm_receiver_datagram_max_size. */
    uint64_t unrecovered_too_long;
    /* counter, messages: Messages and fragments received, including those of topics without a local receiver. */
    uint64_t lbm_msgs_rcved;
    /* counter, messages: Messages and fragments received for topics without a local receiver. */
    uint64_t lbm_msgs_no_topic_rcved;
    /* counter, messages: Request messages received. */
    uint64_t lbm_reqs_rcved;
    /* counter, datagrams: Datagrams dropped: shorter than their size fields require. */
    uint64_t dgrams_dropped_size;
    /* counter, datagrams: Datagrams dropped: bad type. */
    uint64_t dgrams_dropped_type;
    /* counter, datagrams: Datagrams dropped: bad version. */
    uint64_t dgrams_dropped_version;
    /* counter, datagrams: Datagrams dropped: bad header. */
    uint64_t dgrams_dropped_hdr;
    /* counter, datagrams: Datagrams dropped: any other reason. */
    uint64_t dgrams_dropped_other;
    /* counter, datagrams: Datagrams that filled a gap without being a retransmission; each was also counted as lost. */
    uint64_t out_of_order;
    /* counter, datagrams: Datagrams dropped: wrong session id. */
    uint64_t dgrams_dropped_sid;
    /* counter, datagrams: Datagrams dropped: longer than transport_lbtrm_receiver_datagram_max_size (UX-26). */
    uint64_t dgrams_dropped_too_long;
    /* counter, datagrams: NCF datagrams received. */
    uint64_t ncf_pckts_rcved;
    /* counter, datagrams: Datagrams NAKed again because retransmissions that were NAKed later, or a report of theirs, have arrived. */
    uint64_t retransmissions_lost;
    /* counter, datagrams: Datagrams accepted with the retransmission flag. */
    uint64_t rxs_rcved;
    /* counter, datagrams: Session messages received. */
    uint64_t session_messages_rcved;
    /* counter, records: Topic sequence number information records received. */
    uint64_t tsnis_rcved;
    /* counter, messages: Flow-control status messages sent. */
    uint64_t status_messages_sent;
    /* snapshot, datagrams: Lost datagrams that are not recovered yet. */
    uint64_t loss_map_entries;
    /* counter, datagrams: Datagrams given up at once because the loss map is full. */
    uint64_t loss_map_overflows;
    /* min, ms x 1000000: Shortest one-way latency of a message, from its sending (publisher's clock) to its arrival (this host's clock; send_timestamps). */
    uint64_t latency_min;
    /* mean, ms x 1000000: Mean one-way latency of a message. */
    uint64_t latency_mean;
    /* max, ms x 1000000: Longest one-way latency of a message, retransmitted messages included. */
    uint64_t latency_max;
    /* counter, messages: Messages that arrived before they were sent: the clocks of the two hosts differ by more than the latency. */
    uint64_t latency_negative;
    /* counter, datagrams: Lost datagrams given up that only session messages announced: the NAK generation interval ended. */
    uint64_t claims_given_up;
    /* counter, NAKs: NAKs delayed by transport_lbtrm_nak_rate_limit, each counted once. */
    uint64_t naks_rate_limited;
    /* counter, NAKs: NAKs due but not sent because the receiver's own NAK cutoff is in effect, counted each time. */
    uint64_t naks_withheld;
    /* counter, datagrams: Datagrams that arrived in pieces, because they were longer than the path. */
    uint64_t datagrams_rcved_in_pieces;
    /* counter, events: Times the session stopped sending NAKs after transport_lbtrm_nak_cutoff_interval. */
    uint64_t nak_cutoffs;
    /* snapshot, bits: Bit mask of reasons for sending no NAKs: 1 a call for the context, 2 a call for every receiver on the session, 4 the session itself; 0: NAKs are sent. */
    uint64_t nak_cutoff;
    /* snapshot, bytes: Stream position in bytes reported to the source as consumed. */
    uint64_t rcv_pos;
    /* snapshot, bytes: Window in bytes beyond rcv_pos, as reported to the source. */
    uint64_t rcv_window;
    /* counter, datagrams: Datagrams dropped: no authentication trailer although the session's keys require one. TCP: connections closed because the peer has no key. */
    uint64_t dgrams_dropped_tag_missing;
    /* counter, datagrams: Datagrams dropped: the trailer names a key that is not in use here. TCP: connections closed because of the peer's key. */
    uint64_t dgrams_dropped_tag_key;
    /* counter, datagrams: Datagrams dropped: the tag is wrong, because the datagram was changed or made without the key. TCP: connections closed. */
    uint64_t dgrams_dropped_tag_wrong;
    /* counter, datagrams: Datagrams dropped: the trailer's time differs from this host's clock by more than authentication_time_tolerance. */
    uint64_t dgrams_dropped_tag_stale;
    /* counter, datagrams: Datagrams dropped: received before, or too late to rule that out. TCP: connections closed because a record was repeated or missing. */
    uint64_t dgrams_dropped_tag_replayed;
    /* counter, datagrams: Datagrams dropped: encrypted although this host's option encryption is none, or the other way round. TCP: connections closed for this. */
    uint64_t dgrams_dropped_tag_encryption;
    /* snapshot, receivers: Receivers of the session, as reported by the source; 0 before its first report. */
    uint64_t group_receivers;
    /* snapshot, ms x 1000000: Smoothed time from the first NAK to the retransmission; before the first sample, assumed or reported by the source. */
    uint64_t round_trip;
    /* snapshot, ms x 1000000: Smoothed deviation of the round-trip time. */
    uint64_t round_trip_variance;
    /* snapshot, samples: Retransmissions that served as round-trip samples: after exactly one NAK and without an NCF. */
    uint64_t round_trip_samples;
    /* snapshot, ms x 1000000: How late recently reordered (not lost) datagrams arrived. */
    uint64_t reordering;
    /* snapshot, ms x 1000000: Initial back-off in use: as configured, or the upper bound of the current random draw. */
    uint64_t nak_initial_backoff;
    /* snapshot, ms x 1000000: Back-off in use: as configured, or the lower bound of the random draw after one NAK. */
    uint64_t nak_backoff;
    /* snapshot, ms x 1000000: Suppress interval in use: as configured, or the one after one NCF. */
    uint64_t nak_suppress;
    /* snapshot, bits: Bit mask of adaptive timers: 1 the initial back-off, 2 the back-off, 4 the suppress interval. */
    uint64_t timers_adaptive;
    /* snapshot, 0/1: 1 if the session sends no NAKs (transport_lbtrm_send_naks 0), else 0. */
    uint64_t naks_off;
    /* counter, datagrams: LBT-RU: connection requests sent. */
    uint64_t creqs_sent;
    /* counter, connections: LBT-RU, LBT-TCP, LBT-IPC: connection requests that the source answered. */
    uint64_t connects;
    /* counter, datagrams: LBT-RU: acknowledgements sent. */
    uint64_t acks_sent;
    /* counter, datagrams: LBT-RU: resets received; the source does not know this receiver, which then reconnects. */
    uint64_t resets_rcved;
    /* counter, connections: LBT-TCP, LBT-IPC: connections to the source that were lost, or closed because they carried no valid message stream. */
    uint64_t disconnects;
    /* counter, datagrams: LBT-RU: datagrams not sent by the source because they contain no topic subscribed here (transport_source_side_filtering_behavior). */
    uint64_t dgrams_passed_over;
    /* counter, datagrams: LBT-RU: datagrams received that report which datagrams the source filtered and which subscriptions are in effect. */
    uint64_t filter_reports_rcved;
    /* counter, datagrams: LBT-RU: lists of subscribed topics sent to the source. */
    uint64_t interests_sent;
    /* counter, messages: LBT-RU, LBT-TCP: messages of a re-subscribed topic dropped before the source reported from where it sends the whole topic. */
    uint64_t msgs_before_interest;
    /* counter, overruns: LBT-IPC, source-paced: times the source overwrote unread messages in the shared log; loss events name the messages. */
    uint64_t log_overruns;
    /* counter, requests: LBT-IPC: requests to attach that the source refused: no common version, another session, a wrong log key, or too many receivers. */
    uint64_t attachments_refused;
} um_receiver_transport_counters;

static inline void um_receiver_transport_counters_reset(um_receiver_transport_counters *counters)
{
    *counters = (um_receiver_transport_counters){0};
    counters->nak_stm_min = UINT64_MAX;
    counters->nak_tx_min = UINT64_MAX;
    counters->latency_min = UINT64_MAX;
}

/* One context: topic resolution, blocked sends, datagrams of unknown sessions, shared stores. */
typedef struct um_context_counters {
    /* counter, datagrams: LBT-RM datagrams of sessions that no receiver of this context has joined. */
    uint64_t lbtrm_unknown_msgs_rcved;
    /* counter, datagrams: LBT-RU datagrams dropped: no session of this context receives from their source at that port. */
    uint64_t lbtru_unknown_msgs_rcved;
    /* counter, sessions: LBT-RU sessions that receive at a port chosen by the system because all of transport_lbtru_port_low to _high were taken. */
    uint64_t receive_ports_ephemeral;
    /* counter, sends: Blocking sends that had to wait. */
    uint64_t send_blocked;
    /* counter, sends: Non-blocking sends refused because they would have blocked. */
    uint64_t send_would_block;
    /* counter, episodes: Times a sender stopped at snd_lmt with data to send: snd_bpe of all sessions of the context, ended ones included. */
    uint64_t sender_flow_control_limits;
    /* counter, claims: Abandoned claims replaced by padding after publication_unblock_timeout, in all sessions of the context, ended ones included. */
    uint64_t unblocked_publications;
    /* counter, fragments: Fragments in gaps that delivery controllers detected. */
    uint64_t fragments_lost;
    /* counter, fragments: Fragments that delivery controllers gave up. */
    uint64_t fragments_unrecoverably_lost;
    /* counter, datagrams: Datagrams that receiving sessions, ended ones included, lost for good; without those that off-transport recovery delivered. */
    uint64_t datagrams_given_up;
    /* snapshot, sessions: Transport sessions open, sending and receiving. */
    uint64_t sessions;
    /* counter, sessions: Sessions not joined because the session table is full. */
    uint64_t sessions_refused;
    /* counter, sessions: Sessions closed to make space for others: they had received nothing. */
    uint64_t sessions_evicted;
    /* counter, topics: Topics of ended sessions that restart without a loss report when rejoined: too many others ended since, or only earlier datagrams arrived. */
    uint64_t resume_points_dropped;
    /* snapshot, datagrams: Datagrams in the reorder buffer now. */
    uint64_t hold_store_datagrams;
    /* counter, datagrams: Datagrams refused because the reorder buffer was full. */
    uint64_t hold_store_full;
    /* counter, cycles: Duty cycles of the context loop. */
    uint64_t loop_iterations;
    /* counter, cycles: Loop cycles in which a waiting reader received instead of the context's thread. */
    uint64_t loop_passes_led;
    /* counter, pauses: Pauses of the loop under load for receive coalescing. */
    uint64_t loop_naps;
    /* counter, wakeups: Times a blocked reader was woken through its file descriptor. */
    uint64_t wakeups;
} um_context_counters;

static inline void um_context_counters_reset(um_context_counters *counters)
{
    *counters = (um_context_counters){0};
}

/* One source: a topic as its publisher sees it. */
typedef struct um_source_counters {
    /* counter, messages: Messages that the application sent. */
    uint64_t messages_sent;
    /* counter, fragments: Fragments sent (one for a message that fits a datagram). */
    uint64_t fragments_sent;
    /* counter, bytes: Payload bytes that the application sent. */
    uint64_t bytes_sent;
    /* counter, sends: Sends that returned an error and used no sequence number. */
    uint64_t sends_refused;
    /* counter, claims: Claims that the application aborted. */
    uint64_t claims_aborted;
    /* counter, records: Topic sequence number information records sent for this topic. */
    uint64_t tsnis_sent;
    /* snapshot, fragments: Late join and off-transport recovery: fragments retained. */
    uint64_t retained_messages;
    /* snapshot, bytes: Late join and off-transport recovery: bytes retained, message headers included. */
    uint64_t retained_bytes;
    /* counter, requests: Late join and off-transport recovery: fragments requested by receivers. */
    uint64_t recovery_requests;
    /* counter, fragments: Late join and off-transport recovery: requested fragments sent. */
    uint64_t recovery_messages_sent;
    /* counter, requests: Late join and off-transport recovery: requested fragments no longer retained. */
    uint64_t recovery_unavailable;
} um_source_counters;

static inline void um_source_counters_reset(um_source_counters *counters)
{
    *counters = (um_source_counters){0};
}

/* One receiver: a topic as its subscriber sees it, over all its delivery controllers. */
typedef struct um_receiver_counters {
    /* counter, messages: Messages delivered to the application. */
    uint64_t messages_delivered;
    /* counter, bytes: Payload bytes delivered to the application. */
    uint64_t bytes_delivered;
    /* counter, fragments: Fragments accepted (one for a message that fits a datagram). */
    uint64_t fragments_received;
    /* counter, fragments: Fragments dropped because their topic sequence number was already received or given up. */
    uint64_t duplicate_fragments;
    /* counter, fragments: Fragments dropped because their fields contradict their message. */
    uint64_t malformed_fragments;
    /* counter, messages: Messages dropped: longer than receiver_maximum_message_length. */
    uint64_t messages_too_long;
    /* counter, messages: Messages delivered without their properties: the block is invalid, or ordered_delivery 0 splits it between rows. */
    uint64_t properties_dropped;
    /* snapshot, fragments: Fragments waiting in order maps. */
    uint64_t order_map_entries;
    /* counter, gaps: Gaps given up because the order map was full (UX-6). */
    uint64_t order_map_overflows;
    /* snapshot, datagrams: Received datagrams kept alive for messages not yet delivered. */
    uint64_t held_datagrams;
    /* counter, pauses: Times delivery paused because the receiver's queue was full. */
    uint64_t queue_full_pauses;
    /* snapshot, nanoseconds: How long the receiver's queue has been full; 0: it has space. */
    uint64_t queue_full_time;
    /* counter, events: Times the receiver was cut loose from a source because its queue stayed full (CutLoose). */
    uint64_t cut_loose;
    /* counter, messages: Messages, or fragments of them, dropped while the receiver was cut loose; with off-transport recovery they are fetched. */
    uint64_t cut_loose_messages;
    /* snapshot, messages: Rows in the receiver's queue that are not read yet. */
    uint64_t queued_messages;
    /* counter, messages: Messages that the receiver's queue replaced by newer ones of the same key (receiver_full_queue conflate). */
    uint64_t conflated_messages;
    /* counter, events: UnrecoverableLoss events delivered. */
    uint64_t unrecoverable_loss_events;
    /* counter, events: BurstLoss events delivered. */
    uint64_t burst_loss_events;
    /* counter, events: BeginningOfSession events delivered. */
    uint64_t bos_events;
    /* counter, events: EndOfSession events delivered. */
    uint64_t eos_events;
    /* snapshot, sources: Sources that this receiver follows now. */
    uint64_t delivery_controllers;
    /* counter, events: SourceDeleted events dropped because the queue was full when the receiver closed or an unused source was evicted. */
    uint64_t source_notifications_dropped;
    /* counter, fragments: Late join: fragments from before the receiver joined, fetched from the source. */
    uint64_t late_join_messages;
    /* counter, fragments: Live fragments dropped because they were beyond retransmit_message_caching_proximity during a late join, or beyond the order map during off-transport recovery; they are fetched as well. */
    uint64_t late_join_not_cached;
    /* counter, fragments: Late join: fragments given up because they are no longer retained or the source ended. */
    uint64_t late_join_lost;
    /* counter, recoveries: Off-transport recovery: recoveries started by delivery controllers of this receiver. */
    uint64_t otr_begun;
    /* counter, fragments: Off-transport recovery: fragments fetched from the source after the transport had not recovered them. */
    uint64_t otr_messages;
    /* counter, fragments: Off-transport recovery: fragments not recovered, because they are no longer retained or no answer came in time. */
    uint64_t otr_lost;
    /* counter, fragments: Fragments lost before the first message delivered from a source; not reported as loss (UM-135). */
    uint64_t leading_losses;
    /* counter, messages: Messages on a recovery connection dropped: not requested, or already received. */
    uint64_t late_join_refused;
} um_receiver_counters;

static inline void um_receiver_counters_reset(um_receiver_counters *counters)
{
    *counters = (um_receiver_counters){0};
}

/* One link: the work of its socket or ring. */
typedef struct um_link_counters {
    /* counter, datagrams: UDP datagrams submitted to the kernel or the ring. */
    uint64_t datagrams_sent;
    /* counter, bytes: UDP payload bytes of those datagrams. */
    uint64_t bytes_sent;
    /* counter, datagrams: UDP datagrams taken from the kernel or the ring. */
    uint64_t datagrams_received;
    /* counter, bytes: UDP payload bytes of those datagrams. */
    uint64_t bytes_received;
    /* counter, calls: Sends deferred because the socket buffer or the ring was full. */
    uint64_t send_would_block;
    /* counter, calls: Sends of which the kernel or the ring took none or only a part; the rest is sent later. System-wide: links of ended sessions are included. */
    uint64_t short_sends;
    /* counter, datagrams: Datagrams refused by the kernel with an error other than would-block. */
    uint64_t send_errors;
    /* counter, calls: Receive calls that failed with an error other than would-block. */
    uint64_t receive_errors;
    /* counter, datagrams: Datagrams dropped because the receive buffer or ring was full (SO_RXQ_OVFL for sockets). */
    uint64_t receive_drops;
    /* counter, datagrams: Datagrams dropped because they were longer than the receive buffer. */
    uint64_t receive_truncated;
    /* counter, calls: Sends that carried several datagrams as one (UDP GSO). */
    uint64_t gso_sends;
    /* counter, calls: Receives that carried several datagrams as one (UDP GRO). */
    uint64_t gro_receives;
    /* counter, datagrams: Datagrams built before the MTU shrank and sent with IP fragmentation allowed. */
    uint64_t oversize_sends;
    /* counter, calls: System calls made to send, to receive and to wait. */
    uint64_t syscalls;
    /* counter, frames: Frames from a ring dropped because they contain no whole UDP datagram. */
    uint64_t ring_frames_refused;
    /* counter, datagrams: Datagrams from a ring dropped for a wrong UDP checksum (link_xdp_checksum). */
    uint64_t ring_checksum_errors;
    /* counter, datagrams: Datagrams from a ring dropped for an IP header with a wrong checksum, malformed options or a source route. */
    uint64_t ring_ip_errors;
    /* counter, datagrams: Datagrams from a ring dropped because no host can have their source address (multicast, broadcast, loopback, 0.0.0.0). */
    uint64_t ring_martians;
    /* counter, datagrams: Datagrams received in several frames of a ring (jumbo). */
    uint64_t ring_multi_buffer;
    /* counter, datagrams: Datagrams that publishers staged in a frame of the ring and that were sent from it without a copy. */
    uint64_t ring_sent_in_place;
    /* counter, datagrams: Received datagrams whose payload stayed pinned in its ring frame until the application had read it. */
    uint64_t ring_kept;
    /* counter, datagrams: Datagrams of steered groups that the kernel delivered instead of a ring: IP fragments, datagrams joined by GSO or GRO in generic mode, and those of another queue. */
    uint64_t ring_kernel_path;
    /* counter, datagrams: Datagrams from a ring without the steering program's timestamp; the loop's clock supplies their arrival time. */
    uint64_t ring_times_missing;
    /* counter, datagrams: Datagrams from a ring whose arrival time is the NIC's receive timestamp (link_xdp_nic_timestamps). */
    uint64_t ring_nic_times;
    /* counter, datagrams: Datagrams from a ring whose NIC timestamp is implausible: after the kernel saw the frame, or long before. */
    uint64_t ring_nic_times_refused;
    /* counter, frames: XDP_STATISTICS: frames dropped by the kernel because the fill ring was empty or they were too long. */
    uint64_t xdp_rx_dropped;
    /* counter, frames: XDP_STATISTICS: fill ring entries that the kernel refused. */
    uint64_t xdp_rx_invalid_descs;
    /* counter, frames: XDP_STATISTICS: send ring entries that the kernel refused. */
    uint64_t xdp_tx_invalid_descs;
    /* counter, frames: XDP_STATISTICS: frames dropped because the receive ring was full. */
    uint64_t xdp_rx_ring_full;
    /* counter, times: XDP_STATISTICS: times the kernel found the fill ring empty. */
    uint64_t xdp_rx_fill_ring_empty_descs;
    /* counter, times: XDP_STATISTICS: times the kernel found the send ring empty. */
    uint64_t xdp_tx_ring_empty_descs;
} um_link_counters;

static inline void um_link_counters_reset(um_link_counters *counters)
{
    *counters = (um_link_counters){0};
}

/* One event queue: its length, waiting times and callback times, as far as the options of scope event_queue enable them. */
typedef struct um_event_queue_counters {
    /* snapshot, rows: Rows in the queue that are not read yet: messages and events. */
    uint64_t events;
    /* counter, rows: Rows that entered the queue. */
    uint64_t events_tot;
    /* min, us x 1000: Shortest time between a row entering the queue and being read (queue_age_enabled). */
    uint64_t age_min;
    /* mean, us x 1000: Mean time between a row entering the queue and being read. */
    uint64_t age_mean;
    /* max, us x 1000: Longest time between a row entering the queue and being read. */
    uint64_t age_max;
    /* min, us x 1000: Shortest time that on_message took for a row (queue_service_time_enabled); UM counts each kind of event separately. */
    uint64_t events_svc_min;
    /* mean, us x 1000: Mean time that on_message took for a row. */
    uint64_t events_svc_mean;
    /* max, us x 1000: Longest time that on_message took for a row. */
    uint64_t events_svc_max;
    /* counter, warnings: Times the rows waiting at a read rose above queue_size_warning. */
    uint64_t size_warnings;
    /* counter, warnings: Times the age of the oldest row at a read rose above queue_delay_warning. */
    uint64_t delay_warnings;
} um_event_queue_counters;

static inline void um_event_queue_counters_reset(um_event_queue_counters *counters)
{
    *counters = (um_event_queue_counters){0};
    counters->age_min = UINT64_MAX;
    counters->events_svc_min = UINT64_MAX;
}

/* One hot failover receiver: merges the copies that several sources send into one numbered stream. */
typedef struct um_hot_failover_counters {
    /* counter, messages: Messages delivered: the first copy of each number. */
    uint64_t hf_delivered;
    /* counter, messages: Messages dropped: further copies, and numbers from before a reset. */
    uint64_t hf_duplicates;
    /* counter, numbers: Numbers declared lost because no source delivered them in time. */
    uint64_t hf_lost;
    /* counter, numbers: Numbers that the application skipped: a source sent no message between two that follow each other. */
    uint64_t hf_left_out;
    /* counter, messages: Messages that one source's transport lost unrecoverably; another source may have delivered them. */
    uint64_t hf_line_losses;
    /* counter, messages: Optional messages dropped (hf_optional_messages 0). */
    uint64_t hf_optional_dropped;
    /* counter, messages: Messages dropped: their number is more than 1073741824 ahead, or is the first unexpectedly far ahead and needs confirmation by another. */
    uint64_t hf_out_of_range;
    /* counter, events: Resets of the numbering delivered, each once regardless of the number of sources. */
    uint64_t hf_resets;
    /* snapshot, messages: Messages that were waiting for an earlier number at the last read. */
    uint64_t hf_waiting;
} um_hot_failover_counters;

static inline void um_hot_failover_counters_reset(um_hot_failover_counters *counters)
{
    *counters = (um_hot_failover_counters){0};
}

#endif
/* clang-format on */
