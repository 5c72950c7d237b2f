#include "core/source/session_messages.h"

#include "core/source/client_interest.h"
#include "core/wire/status_message.h"

void um_source_session_message_send(um_source_session *session, int64_t now_ns)
{
    uint8_t datagram[UM_FRAMING_SM_BYTES_MAX + UM_COOKIE_LBMC_BYTES];
    const um_source_session_config *config = &session->config;
    uint32_t length = um_framing_write_sm(config->transport, datagram, config->session_id, config->nak_port,
                                          session->sm_sqn++, session->next_sqn - 1, session->trail_sqn);
    if (config->flow_cookie != 0)
        length += um_cookie_write(datagram + length, config->flow_cookie);
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->last_sm_ns = now_ns;
    session->answer_due_ns = UM_NEVER_NS;
    um_clients_report_passed(session);
    if (session->link->ops->send(session->link, session->config.group, &tx, 1) == 1)
        UM_COUNT(session->counters.session_messages_sent, 1);
}

/* The first is sent after the minimum idle interval, or the measured one (source_timing.h); the interval then doubles
 * up to its maximum (UM-68). */
int64_t um_source_session_message_tick(um_source_session *session, int64_t now_ns)
{
    if (now_ns >= session->answer_due_ns)
        um_source_session_message_send(session, now_ns);
    if (!session->has_sent || session->config.sm_minimum_interval_ns == 0)
        return session->answer_due_ns;
    int64_t due_ns = session->last_sent_ns + session->sm_interval_ns;
    if (now_ns < due_ns)
        return um_earliest_ns(due_ns, session->answer_due_ns);
    um_source_session_message_send(session, now_ns);
    session->last_sent_ns = due_ns;
    int64_t doubled_ns = 2 * session->sm_interval_ns;
    session->sm_interval_ns = um_earliest_ns(doubled_ns, session->config.sm_maximum_interval_ns);
    if (now_ns - due_ns > session->sm_interval_ns)
        session->last_sent_ns = now_ns; /* the caller was late: skip the missed messages, do not send a burst */
    return session->last_sent_ns + session->sm_interval_ns;
}
