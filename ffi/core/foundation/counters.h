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

/* The sending side of one LBT-RM or LBT-RU transport session: datagrams, transmission window, NAK service, flow control. */
typedef struct um_source_transport_counters {
    /* counter, datagrams: Data datagrams sent for the first time. */
    uint64_t msgs_sent;
    /* counter, bytes: Bytes of those datagrams, transport and message headers included. */
    uint64_t bytes_sent;
    /* snapshot, datagrams: Datagrams held in the transmission window. */
    uint64_t txw_msgs;
    /* snapshot, bytes: Bytes held in the transmission window. */
    uint64_t txw_bytes;
    /* counter, datagrams: NAK datagrams received. */
    uint64_t nak_pckts_rcved;
    /* counter, NAKs: Sequence numbers NAKed in those datagrams. */
    uint64_t naks_rcved;
    /* counter, NAKs: Refused: retransmitted less than the ignore interval ago (NCF reason ignored). */
    uint64_t naks_ignored;
    /* counter, NAKs: Refused: retransmit limiter and its queue both full (NCF reason shed). */
    uint64_t naks_shed;
    /* counter, NAKs: Put off by the retransmit limiter, retransmission queued (NCF reason rx_delay). */
    uint64_t naks_rx_delay_ignored;
    /* counter, datagrams: Datagrams retransmitted. */
    uint64_t rxs_sent;
    /* counter, bytes: Bytes of the datagrams retransmitted. */
    uint64_t rx_bytes_sent;
    /* snapshot, datagrams: Datagrams waiting for the data rate limiter. */
    uint64_t rctlr_data_msgs;
    /* snapshot, datagrams: Datagrams waiting for the retransmit rate limiter. */
    uint64_t rctlr_rx_msgs;
    /* counter, NAKs: Dropped without a response: an NCF for that sequence number went out in the same ignore interval (UM-130). */
    uint64_t naks_suppressed;
    /* counter, NAKs: Dropped without a response: the sequence number has left the transmission window. */
    uint64_t naks_out_of_window;
    /* counter, NAKs: Dropped without a response: the sequence number was never sent. */
    uint64_t nak_unknown_sqn;
    /* counter, datagrams: NCF datagrams sent. */
    uint64_t ncf_pckts_sent;
    /* counter, NCFs: Sequence numbers listed in those datagrams. */
    uint64_t ncfs_sent;
    /* counter, datagrams: Session messages (idle keepalives) sent. */
    uint64_t session_messages_sent;
    /* counter, records: Topic sequence number information records sent. */
    uint64_t tsnis_sent;
    /* counter, batches: Batches released by implicit_batching_minimum_length. */
    uint64_t flushes_length;
    /* counter, batches: Batches released because the next message would not fit the datagram. */
    uint64_t flushes_full;
    /* counter, batches: Batches released by implicit_batching_interval. */
    uint64_t flushes_interval;
    /* counter, batches: Batches released by a flush that the application requested. */
    uint64_t flushes_explicit;
    /* snapshot, bytes: Publication log: position reserved by publishers. */
    uint64_t pub_pos;
    /* snapshot, bytes: Publication log: position publishers may not start beyond. */
    uint64_t pub_lmt;
    /* snapshot, bytes: Publication log: position sent. */
    uint64_t snd_pos;
    /* snapshot, bytes: Publication log: position flow control lets the sender reach. */
    uint64_t snd_lmt;
    /* counter, episodes: Times the sender stopped at snd_lmt with data to send. */
    uint64_t snd_bpe;
    /* counter, sends: Publish attempts refused or blocked at pub_lmt. */
    uint64_t back_pressured;
    /* counter, sends: Publish attempts refused because flow control knows no receiver. */
    uint64_t not_connected;
    /* counter, claims: Abandoned claims replaced by padding after publication_unblock_timeout. */
    uint64_t unblocked_publications;
    /* counter, terms: Times the publication log moved on to its next term. */
    uint64_t term_rotations;
    /* snapshot, receivers: Receivers whose status messages count for flow control now. */
    uint64_t receivers_known;
    /* counter, receivers: Receivers dropped after flow_control_receiver_timeout. */
    uint64_t receivers_timed_out;
    /* counter, receivers: Status messages of new receivers refused because the receiver table is full. */
    uint64_t receivers_refused;
    /* counter, receivers: Receivers that no longer count because they held the sender for flow_control_stall_timeout without advancing. */
    uint64_t receivers_stalled;
    /* counter, messages: Status messages dropped: their sender is not in flow_control_receivers_allowed. */
    uint64_t status_not_allowed;
    /* counter, NAKs: Dropped without a response: the receiver, or all strangers together, used up its share of the repair budget. */
    uint64_t naks_over_share;
    /* counter, NAKs: Dropped without a response: the receiver is cut off (UX-21). */
    uint64_t naks_cut_off;
    /* counter, messages: Flow-control status messages accepted. */
    uint64_t status_messages_received;
    /* counter, messages: Status messages dropped: bad layout. */
    uint64_t status_malformed;
    /* counter, messages: Status messages dropped: a position that cannot be (never sent, or too old). */
    uint64_t status_out_of_range;
    /* counter, datagrams: Dropped at the NAK port: shorter than its headers or counts require. */
    uint64_t dgrams_dropped_size;
    /* counter, datagrams: Dropped at the NAK port: a type that the NAK port does not serve. */
    uint64_t dgrams_dropped_type;
    /* counter, datagrams: Dropped at the NAK port: unknown version. */
    uint64_t dgrams_dropped_version;
    /* counter, datagrams: Dropped at the NAK port: a contradictory header. */
    uint64_t dgrams_dropped_hdr;
    /* counter, datagrams: Dropped at the NAK port: for another session id. */
    uint64_t dgrams_dropped_sid;
    /* counter, datagrams: Dropped at the NAK port: any other reason. */
    uint64_t dgrams_dropped_other;
    /* counter, datagrams: Dropped: no authentication trailer where the session's keys require one; over TCP a connection, for the other side has no key. */
    uint64_t dgrams_dropped_tag_missing;
    /* counter, datagrams: Dropped: the trailer names a key that is not in use here; over TCP a connection, by the other side's key. */
    uint64_t dgrams_dropped_tag_key;
    /* counter, datagrams: Dropped: the tag is wrong; the datagram was changed, or made without the key. Over TCP a connection. */
    uint64_t dgrams_dropped_tag_wrong;
    /* counter, datagrams: Dropped: the trailer's time is further from this host's clock than authentication_time_tolerance. */
    uint64_t dgrams_dropped_tag_stale;
    /* counter, datagrams: Dropped: the datagram was received before, or came too late to tell; over TCP a connection, for a record came twice or is lacking. */
    uint64_t dgrams_dropped_tag_replayed;
    /* counter, datagrams: Control messages that tell receivers how many they are and their longest round trip. */
    uint64_t group_reports_sent;
    /* snapshot, receivers: Receivers that sent a status message in the last second or two, at least; 0 with recovery_timing fixed. */
    uint64_t group_receivers;
    /* snapshot, ms x 1000000: Longest round trip, NAK to retransmission, that a receiver reported in that time, two variances included. */
    uint64_t group_round_trip;
    /* snapshot, ms x 1000000: Ignore interval in force for a receiver that reports no round trip of its own. */
    uint64_t ignore_interval;
    /* snapshot, ms x 1000000: Idle time before the first session message, as in force now. */
    uint64_t sm_first_interval;
    /* snapshot, bits: What is measured: 1 the ignore interval, 2 the first session message, 4 group reports are sent. */
    uint64_t timers_adaptive;
    /* snapshot, receivers: LBT-RU, TCP: receivers connected now. */
    uint64_t num_clients;
    /* snapshot, bytes: TCP: bytes that wait for receivers' connections to take them, over all receivers. */
    uint64_t bytes_buffered;
    /* counter, receivers: LBT-RU, TCP: receivers that connected. */
    uint64_t clients_connected;
    /* counter, receivers: LBT-RU: receivers that left, or acknowledged nothing for transport_lbtru_client_activity_timeout. TCP: that left, or whose connections failed. */
    uint64_t clients_disconnected;
    /* counter, messages: TCP, source-paced: messages not sent to a receiver that was too slow, over all receivers. */
    uint64_t client_messages_lost;
    /* counter, connections: TCP: connections closed because they named another session, sent anything else or nothing, or found no space. */
    uint64_t connections_refused;
    /* counter, datagrams: LBT-RU: acknowledgements of new receivers refused because transport_lbtru_maximum_clients are connected. */
    uint64_t clients_refused;
    /* counter, datagrams: LBT-RU: connection requests received. */
    uint64_t creqs_rcved;
    /* counter, datagrams: LBT-RU: acknowledgements received. */
    uint64_t acks_rcved;
    /* counter, datagrams: LBT-RU: resets sent to receivers that are not connected, so that they connect. */
    uint64_t resets_sent;
    /* counter, datagrams: LBT-RU: dropped: from an address that is not connected, or with a client id that is not its own. */
    uint64_t dgrams_dropped_client;
    /* counter, datagrams: LBT-RU: connection requests and resets left unanswered, because more came in than may be answered to addresses that can be forged. */
    uint64_t connect_answers_limited;
    /* counter, datagrams: LBT-RU: copies not sent to receivers that want no topic in them (transport_source_side_filtering_behavior). */
    uint64_t copies_filtered;
    /* counter, datagrams: LBT-RU: reports to one receiver of what it was not sent, and of which of its wishes are in force. */
    uint64_t filter_reports_sent;
    /* counter, datagrams: LBT-RU: receivers' lists of the topics that they want. */
    uint64_t interests_rcved;
} um_source_transport_counters;

static inline void um_source_transport_counters_reset(um_source_transport_counters *counters)
{
    *counters = (um_source_transport_counters){0};
}

/* The receiving side of one LBT-RM or LBT-RU transport session: loss map, NAK timers, demultiplexing. */
typedef struct um_receiver_transport_counters {
    /* counter, datagrams: Data datagrams accepted, duplicates and rejects not counted. */
    uint64_t msgs_rcved;
    /* counter, bytes: Bytes of those datagrams, headers included. */
    uint64_t bytes_rcved;
    /* counter, datagrams: NAK datagrams sent. */
    uint64_t nak_pckts_sent;
    /* counter, NAKs: Sequence numbers NAKed in those datagrams. */
    uint64_t naks_sent;
    /* counter, datagrams: Datagrams in gaps when the gap was detected; a datagram that is only reordered counts too. */
    uint64_t lost;
    /* counter, NCFs: Sequence numbers in NCFs of reason ignored. */
    uint64_t ncfs_ignored;
    /* counter, NCFs: Sequence numbers in NCFs of reason shed. */
    uint64_t ncfs_shed;
    /* counter, NCFs: Sequence numbers in NCFs of reason rx_delay. */
    uint64_t ncfs_rx_delay;
    /* counter, NCFs: Sequence numbers in NCFs of any other reason. */
    uint64_t ncfs_unknown;
    /* min, ms x 1000000: Shortest time from detecting a lost datagram to receiving it. */
    uint64_t nak_stm_min;
    /* mean, ms x 1000000: Mean of that time. */
    uint64_t nak_stm_mean;
    /* max, ms x 1000000: Longest of that time; near the NAK generation interval, loss is about to be unrecoverable. */
    uint64_t nak_stm_max;
    /* min, NAKs: Fewest NAKs one recovered datagram took. */
    uint64_t nak_tx_min;
    /* mean, NAKs x 1000: Mean of that number. */
    uint64_t nak_tx_mean;
    /* max, NAKs: Most NAKs one recovered datagram took. */
    uint64_t nak_tx_max;
    /* counter, datagrams: Data datagrams received again. */
    uint64_t duplicate_data;
    /* counter, datagrams: Given up: the source's window has moved past them. */
    uint64_t unrecovered_txw;
    /* counter, datagrams: Given up: the NAK generation interval ran out. */
    uint64_t unrecovered_tmo;
    /* counter, datagrams: Given up: the retransmission was longer than transport_lbtrm_receiver_datagram_max_size, too. */
    uint64_t unrecovered_too_long;
    /* counter, messages: Messages and fragments received, those of topics without a local receiver included. */
    uint64_t lbm_msgs_rcved;
    /* counter, messages: Of those, the ones without a local receiver. */
    uint64_t lbm_msgs_no_topic_rcved;
    /* counter, messages: Request messages received. */
    uint64_t lbm_reqs_rcved;
    /* counter, datagrams: Dropped: shorter than its size fields require. */
    uint64_t dgrams_dropped_size;
    /* counter, datagrams: Dropped: bad type. */
    uint64_t dgrams_dropped_type;
    /* counter, datagrams: Dropped: bad version. */
    uint64_t dgrams_dropped_version;
    /* counter, datagrams: Dropped: bad header. */
    uint64_t dgrams_dropped_hdr;
    /* counter, datagrams: Dropped: any other reason. */
    uint64_t dgrams_dropped_other;
    /* counter, datagrams: Filled a gap without being a retransmission (each also raised lost). */
    uint64_t out_of_order;
    /* counter, datagrams: Dropped: for another session id. */
    uint64_t dgrams_dropped_sid;
    /* counter, datagrams: Dropped: longer than transport_lbtrm_receiver_datagram_max_size (UX-26). */
    uint64_t dgrams_dropped_too_long;
    /* counter, datagrams: NCF datagrams received. */
    uint64_t ncf_pckts_rcved;
    /* counter, datagrams: Datagrams accepted that carry the retransmission flag. */
    uint64_t rxs_rcved;
    /* counter, datagrams: Session messages received. */
    uint64_t session_messages_rcved;
    /* counter, records: Topic sequence number information records received. */
    uint64_t tsnis_rcved;
    /* counter, messages: Flow-control status messages sent. */
    uint64_t status_messages_sent;
    /* snapshot, datagrams: Datagrams lost and not yet recovered now. */
    uint64_t loss_map_entries;
    /* counter, datagrams: Given up at once because the loss map is full. */
    uint64_t loss_map_overflows;
    /* min, ms x 1000000: Shortest one-way latency of a message: from its sending by the publisher's clock to its arrival by ours (send_timestamps). */
    uint64_t latency_min;
    /* mean, ms x 1000000: Mean of that time. */
    uint64_t latency_mean;
    /* max, ms x 1000000: Longest of that time; retransmitted messages are among them. */
    uint64_t latency_max;
    /* counter, messages: Messages that arrived before they were sent: the clocks of the two hosts disagree by more than the way took. */
    uint64_t latency_negative;
    /* counter, datagrams: Given up, of those counted as lost: only session messages announced them, and the NAK generation interval ran out. */
    uint64_t claims_given_up;
    /* counter, NAKs: NAKs that transport_lbtrm_nak_rate_limit put off, each counted once. */
    uint64_t naks_rate_limited;
    /* counter, NAKs: NAKs that were due and not sent because of a NAK cutoff of the receiver's own, each time. */
    uint64_t naks_withheld;
    /* counter, events: Times the session stopped its NAKs by itself, after transport_lbtrm_nak_cutoff_interval. */
    uint64_t nak_cutoffs;
    /* snapshot, bits: Why no NAKs are sent now; 0: they are. 1 a call for the context, 2 a call for every receiver on the session, 4 the session itself. */
    uint64_t nak_cutoff;
    /* snapshot, bytes: Stream position reported to the source as consumed. */
    uint64_t rcv_pos;
    /* snapshot, bytes: Window reported to the source beyond rcv_pos. */
    uint64_t rcv_window;
    /* counter, datagrams: Dropped: no authentication trailer where the session's keys require one; over TCP a connection, for the other side has no key. */
    uint64_t dgrams_dropped_tag_missing;
    /* counter, datagrams: Dropped: the trailer names a key that is not in use here; over TCP a connection, by the other side's key. */
    uint64_t dgrams_dropped_tag_key;
    /* counter, datagrams: Dropped: the tag is wrong; the datagram was changed, or made without the key. Over TCP a connection. */
    uint64_t dgrams_dropped_tag_wrong;
    /* counter, datagrams: Dropped: the trailer's time is further from this host's clock than authentication_time_tolerance. */
    uint64_t dgrams_dropped_tag_stale;
    /* counter, datagrams: Dropped: the datagram was received before, or came too late to tell; over TCP a connection, for a record came twice or is lacking. */
    uint64_t dgrams_dropped_tag_replayed;
    /* snapshot, receivers: Receivers of the session as the source tells; 0: it has not yet. */
    uint64_t group_receivers;
    /* snapshot, ms x 1000000: Smoothed time from the first NAK to the retransmission; assumed or told before the first sample. */
    uint64_t round_trip;
    /* snapshot, ms x 1000000: Its smoothed deviation. */
    uint64_t round_trip_variance;
    /* snapshot, samples: Retransmissions it was measured by: of one NAK, without an NCF. */
    uint64_t round_trip_samples;
    /* snapshot, ms x 1000000: How late datagrams arrived of late that were reordered, not lost. */
    uint64_t reordering;
    /* snapshot, ms x 1000000: Initial back-off in force: the configured one, or the most that is drawn now. */
    uint64_t nak_initial_backoff;
    /* snapshot, ms x 1000000: Back-off in force: the configured one, or the least that is drawn after one NAK. */
    uint64_t nak_backoff;
    /* snapshot, ms x 1000000: Suppress interval in force: the configured one, or that after one NCF. */
    uint64_t nak_suppress;
    /* snapshot, bits: What is measured: 1 the initial back-off, 2 the back-off, 4 the suppress interval. */
    uint64_t timers_adaptive;
    /* snapshot, 0/1: 1: the session sends no NAKs (transport_lbtrm_send_naks 0). */
    uint64_t naks_off;
    /* counter, datagrams: LBT-RU: connection requests sent. */
    uint64_t creqs_sent;
    /* counter, connections: LBT-RU, TCP: connection requests that the source answered. */
    uint64_t connects;
    /* counter, datagrams: LBT-RU: acknowledgements sent. */
    uint64_t acks_sent;
    /* counter, datagrams: LBT-RU: resets received: the source does not know this receiver, which connects anew. */
    uint64_t resets_rcved;
    /* counter, connections: TCP: connections to the source that were lost, or given up because what came was no stream of messages. */
    uint64_t disconnects;
    /* counter, datagrams: LBT-RU: not sent by the source, for no topic in them is wanted here (transport_source_side_filtering_behavior). */
    uint64_t dgrams_passed_over;
    /* counter, datagrams: LBT-RU: reports of the source of what it did not send, and of which wishes are in force. */
    uint64_t filter_reports_rcved;
    /* counter, datagrams: LBT-RU: lists of the topics that are wanted, sent to the source. */
    uint64_t interests_sent;
    /* counter, messages: LBT-RU, TCP: dropped: of a topic that is wanted anew, before the source has said since when it sends it whole. */
    uint64_t msgs_before_interest;
} um_receiver_transport_counters;

static inline void um_receiver_transport_counters_reset(um_receiver_transport_counters *counters)
{
    *counters = (um_receiver_transport_counters){0};
    counters->nak_stm_min = UINT64_MAX;
    counters->nak_tx_min = UINT64_MAX;
    counters->latency_min = UINT64_MAX;
}

/* One context: topic resolution, sends that had to wait, datagrams no session knows, shared stores. */
typedef struct um_context_counters {
    /* counter, datagrams: LBT-RM datagrams of sessions that no receiver of this context has joined. */
    uint64_t lbtrm_unknown_msgs_rcved;
    /* counter, datagrams: LBT-RU datagrams dropped: no session here receives from their source at that port. */
    uint64_t lbtru_unknown_msgs_rcved;
    /* counter, sessions: LBT-RU sessions that receive at a port of the system's choice, because transport_lbtru_port_low to _high were taken. */
    uint64_t receive_ports_ephemeral;
    /* counter, sends: Blocking sends that had to wait. */
    uint64_t send_blocked;
    /* counter, sends: Non-blocking sends refused because they would have had to wait. */
    uint64_t send_would_block;
    /* counter, fragments: Fragments in gaps that delivery controllers detected. */
    uint64_t fragments_lost;
    /* counter, fragments: Fragments delivery controllers gave up. */
    uint64_t fragments_unrecoverably_lost;
    /* snapshot, sessions: Transport sessions open, both sides. */
    uint64_t sessions;
    /* counter, sessions: Sessions not joined because the session table is full. */
    uint64_t sessions_refused;
    /* counter, sessions: Sessions that had received nothing and made space for others. */
    uint64_t sessions_evicted;
    /* counter, topics: Topics of ended sessions that begin anew, without a report of their loss, when they are joined again: too many others ended since, or only earlier datagrams came. */
    uint64_t resume_points_dropped;
    /* snapshot, datagrams: Datagrams in the reorder buffer now. */
    uint64_t hold_store_datagrams;
    /* counter, datagrams: Datagrams refused because the reorder buffer was full. */
    uint64_t hold_store_full;
    /* counter, cycles: Duty cycles of the context loop. */
    uint64_t loop_iterations;
    /* counter, cycles: Passes in which a waiting reader received in place of the context's thread. */
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
    /* counter, messages: Messages the application sent. */
    uint64_t messages_sent;
    /* counter, fragments: Fragments they became (one for a message that fits a datagram). */
    uint64_t fragments_sent;
    /* counter, bytes: Payload bytes of those messages. */
    uint64_t bytes_sent;
    /* counter, sends: Sends that returned an error and used no sequence number. */
    uint64_t sends_refused;
    /* counter, claims: Claims the application abandoned on purpose. */
    uint64_t claims_aborted;
    /* counter, records: Topic sequence number information records sent for this topic. */
    uint64_t tsnis_sent;
    /* snapshot, fragments: Late join and off-transport recovery: sequence numbers retained. */
    uint64_t retained_messages;
    /* snapshot, bytes: Late join and off-transport recovery: bytes of those, message headers included. */
    uint64_t retained_bytes;
    /* counter, requests: Late join and off-transport recovery: sequence numbers requested. */
    uint64_t recovery_requests;
    /* counter, fragments: Late join and off-transport recovery: requests answered with the fragment. */
    uint64_t recovery_messages_sent;
    /* counter, requests: Late join and off-transport recovery: requests for what is not retained any more. */
    uint64_t recovery_unavailable;
} um_source_counters;

static inline void um_source_counters_reset(um_source_counters *counters)
{
    *counters = (um_source_counters){0};
}

/* One receiver: a topic as its subscriber sees it, all delivery controllers together. */
typedef struct um_receiver_counters {
    /* counter, messages: Messages delivered to the application. */
    uint64_t messages_delivered;
    /* counter, bytes: Payload bytes of those messages. */
    uint64_t bytes_delivered;
    /* counter, fragments: Fragments accepted (one for a message that fits a datagram). */
    uint64_t fragments_received;
    /* counter, fragments: Fragments dropped because their topic sequence number was already received or given up. */
    uint64_t duplicate_fragments;
    /* counter, fragments: Fragments dropped because their fields contradict the message that they name. */
    uint64_t malformed_fragments;
    /* counter, messages: Messages dropped: longer than receiver_maximum_message_length. */
    uint64_t messages_too_long;
    /* counter, messages: Messages delivered without their properties: the block cannot be read, or ordered_delivery 0 divides it between rows. */
    uint64_t properties_dropped;
    /* snapshot, fragments: Fragments waiting in order maps. */
    uint64_t order_map_entries;
    /* counter, gaps: Gaps given up because the order map was full (UX-6). */
    uint64_t order_map_overflows;
    /* snapshot, datagrams: Received datagrams kept alive for messages not yet delivered. */
    uint64_t held_datagrams;
    /* counter, pauses: Times delivery paused because the application had not emptied its queue. */
    uint64_t queue_full_pauses;
    /* snapshot, messages: Rows in the queue it delivers into, not yet read. */
    uint64_t queued_messages;
    /* counter, events: UnrecoverableLoss events delivered. */
    uint64_t unrecoverable_loss_events;
    /* counter, events: BurstLoss events delivered. */
    uint64_t burst_loss_events;
    /* counter, events: BeginningOfSession events delivered. */
    uint64_t bos_events;
    /* counter, events: EndOfSession events delivered. */
    uint64_t eos_events;
    /* snapshot, sources: Sources this receiver follows now. */
    uint64_t delivery_controllers;
    /* counter, events: SourceDeleted events that found no space in the queue when the receiver was closed or a source that never sent gave way. */
    uint64_t source_notifications_dropped;
    /* counter, fragments: Fragments from before the receiver joined, fetched from the source. */
    uint64_t late_join_messages;
    /* counter, fragments: Live fragments dropped during a late join, further ahead than retransmit_message_caching_proximity, or during off-transport recovery, beyond the order map: they are fetched, too. */
    uint64_t late_join_not_cached;
    /* counter, fragments: Fragments of a run that a late join had to give up: not retained any more, or the source gone. */
    uint64_t late_join_lost;
    /* counter, recoveries: Off-transport recovery: how often a delivery controller of this receiver began it. */
    uint64_t otr_begun;
    /* counter, fragments: Off-transport recovery: fragments fetched from the source, which the transport had not recovered. */
    uint64_t otr_messages;
    /* counter, fragments: Off-transport recovery: fragments that it could not have either: not retained any more, or no answer in time. */
    uint64_t otr_lost;
    /* counter, fragments: Fragments lost before the first message delivered of a source: not reported as loss (UM-135). */
    uint64_t leading_losses;
    /* counter, messages: Messages on a recovery connection that were dropped: not requested, received twice, or here by then. */
    uint64_t late_join_refused;
} um_receiver_counters;

static inline void um_receiver_counters_reset(um_receiver_counters *counters)
{
    *counters = (um_receiver_counters){0};
}

/* One link: what the socket or the ring did. */
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
    /* counter, datagrams: Datagrams refused with an error other than would-block. */
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
    /* counter, datagrams: Datagrams built before the MTU shrank, sent with IP fragmentation allowed. */
    uint64_t oversize_sends;
    /* counter, calls: System calls made to send, to receive and to wait. */
    uint64_t syscalls;
    /* counter, frames: Frames from a ring that hold no whole UDP datagram. */
    uint64_t ring_frames_refused;
    /* counter, datagrams: Datagrams from a ring refused for their UDP checksum, where link_xdp_checksum has it verified. */
    uint64_t ring_checksum_errors;
    /* counter, datagrams: Datagrams received in several frames of a ring (jumbo). */
    uint64_t ring_multi_buffer;
    /* counter, datagrams: Datagrams that publishers staged in a frame of the ring, sent from there without a copy. */
    uint64_t ring_sent_in_place;
    /* counter, datagrams: Received datagrams whose payload stayed pinned in its frame of the ring until the application had read it. */
    uint64_t ring_kept;
    /* counter, datagrams: Datagrams of steered groups that the kernel delivered instead: IP fragments, and datagrams of another queue. */
    uint64_t ring_kernel_path;
    /* counter, datagrams: Datagrams from a ring without the time that the steering program should have noted: the loop's clock gives their time of arrival. */
    uint64_t ring_times_missing;
    /* counter, datagrams: Datagrams from a ring whose time of arrival is the NIC's receive timestamp (link_xdp_nic_timestamps). */
    uint64_t ring_nic_times;
    /* counter, datagrams: Datagrams from a ring whose timestamp of the NIC cannot be: it lies after the kernel saw the frame, or long before. */
    uint64_t ring_nic_times_refused;
    /* counter, frames: XDP_STATISTICS: dropped by the kernel for lack of a frame in the fill ring, or too long for one. */
    uint64_t xdp_rx_dropped;
    /* counter, frames: XDP_STATISTICS: fill ring entries the kernel refused. */
    uint64_t xdp_rx_invalid_descs;
    /* counter, frames: XDP_STATISTICS: send ring entries the kernel refused. */
    uint64_t xdp_tx_invalid_descs;
    /* counter, frames: XDP_STATISTICS: dropped because the receive ring was full. */
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

/* One event queue: what waits, how long it waited and how long callbacks took, where the options of scope event_queue have it counted. */
typedef struct um_event_queue_counters {
    /* snapshot, rows: Rows in the queue, not yet read: messages and events. */
    uint64_t events;
    /* counter, rows: Rows that came into the queue. */
    uint64_t events_tot;
    /* min, us x 1000: Shortest time from a row's coming into the queue to its being read (queue_age_enabled). */
    uint64_t age_min;
    /* mean, us x 1000: Mean of that time. */
    uint64_t age_mean;
    /* max, us x 1000: Longest of that time. */
    uint64_t age_max;
    /* min, us x 1000: Shortest time that on_message took for a row (queue_service_time_enabled); UM has it for each kind of event. */
    uint64_t events_svc_min;
    /* mean, us x 1000: Mean of that time. */
    uint64_t events_svc_mean;
    /* max, us x 1000: Longest of that time. */
    uint64_t events_svc_max;
    /* counter, warnings: Times a read began to find more rows waiting than queue_size_warning. */
    uint64_t size_warnings;
    /* counter, warnings: Times a read began to find that the oldest row had waited longer than queue_delay_warning. */
    uint64_t delay_warnings;
} um_event_queue_counters;

static inline void um_event_queue_counters_reset(um_event_queue_counters *counters)
{
    *counters = (um_event_queue_counters){0};
    counters->age_min = UINT64_MAX;
    counters->events_svc_min = UINT64_MAX;
}

/* One hot failover receiver: one stream of numbers out of the copies that several sources send. */
typedef struct um_hot_failover_counters {
    /* counter, messages: Messages delivered: the first copy of each number. */
    uint64_t hf_delivered;
    /* counter, messages: Other copies, and what came of a number from before a reset. */
    uint64_t hf_duplicates;
    /* counter, numbers: Numbers that no source brought in time: declared lost. */
    uint64_t hf_lost;
    /* counter, numbers: Numbers that the application left out: two messages that follow each other at a source have nothing between them. */
    uint64_t hf_left_out;
    /* counter, messages: Messages that one source's transport lost for good; another source may have brought them. */
    uint64_t hf_line_losses;
    /* counter, messages: Optional messages dropped (hf_optional_messages 0). */
    uint64_t hf_optional_dropped;
    /* counter, messages: Messages dropped: their number is more than 1073741824 beyond the next, or was the first so far ahead that it has to be confirmed. */
    uint64_t hf_out_of_range;
    /* counter, events: Resets of the numbering delivered, each once whatever number of sources sent it. */
    uint64_t hf_resets;
    /* snapshot, messages: Messages that waited for an earlier number at the last read. */
    uint64_t hf_waiting;
} um_hot_failover_counters;

static inline void um_hot_failover_counters_reset(um_hot_failover_counters *counters)
{
    *counters = (um_hot_failover_counters){0};
}

#endif
/* clang-format on */
