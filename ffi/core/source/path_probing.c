#include "core/source/path_probing.h"

#include "core/wire/path_probe.h"

void um_path_probing_apply(um_source_session *session)
{
    atomic_store(&session->body_max_bytes, session->path.bytes - um_source_session_overhead_bytes(session));
}

/* A session message, the probe and zeros. It is built where the sender builds datagrams, which it does not do now. */
static void send_probe(um_source_session *session, const um_path_probe *probe, int64_t now_ns)
{
    const um_source_session_config *config = &session->config;
    uint32_t length = probe->bytes - config->control_trailer_bytes;
    uint8_t *datagram = session->staging;
    uint32_t at = um_framing_write_sm(config->transport, datagram, config->session_id, config->nak_port,
                                      session->sm_sqn++, session->next_sqn - 1, session->trail_sqn);
    at += um_path_probe_encode(datagram + at, probe);
    assert(at <= length && length <= config->datagram_max_bytes);
    memset(datagram + at, 0, length - at);
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->last_sm_ns = now_ns;
    session->answer_due_ns = UM_NEVER_NS;
    if (session->link->ops->send(session->link, config->group, &tx, 1) == 1)
        UM_COUNT(session->counters.path_probes_sent, 1);
}

/* Round trips are measured by retransmissions, which are lost while long datagrams do not pass: hence the maximum. An
 * answer that comes later counts, too. */
static int64_t answer_wait_ns(const um_source_session *session)
{
    enum { FLOOR_NS = 50000000, CEILING_NS = 150000000, ROUND_TRIPS = 3 };
    return um_between_ns(ROUND_TRIPS * um_census_longest_ns(&session->timing.census), FLOOR_NS, CEILING_NS);
}

int64_t um_path_probing_tick(um_source_session *session, int64_t now_ns)
{
    um_path_mtu *path = &session->path;
    if (now_ns < path->due_ns)
        return path->due_ns;
    uint32_t before = path->bytes;
    const um_path_probes *probes = um_path_mtu_tick(path, answer_wait_ns(session), now_ns);
    for (uint32_t i = 0; probes != NULL && i < probes->count; i++) {
        um_path_probe probe = {path->round, probes->sizes[i], probes->wants_answer};
        send_probe(session, &probe, now_ns);
    }
    if (path->bytes != before) {
        um_address by = path->bytes < path->ceiling_bytes ? path->limited_by : (um_address){0};
        um_path_probing_apply(session);
        um_source_events_add(&session->events, UM_SOURCE_PATH_CHANGED, by, path->bytes);
    }
    return path->due_ns;
}
