#include "core/receiver/connection.h"

#include "core/receiver/interest.h"
#include "core/receiver/topic_reports.h"
#include "core/wire/framing.h"

void um_connection_init(um_receiver_session *session, int64_t now_ns)
{
    um_connection *connection = &session->connection;
    if (session->config.id.transport != UM_TRANSPORT_LBTRU)
        return;
    *connection = (um_connection){.state = UM_CONNECTION_CONNECTING,
                                  .proposed_id = (uint32_t)um_random_next(&session->random),
                                  .requested_ns = INT64_MIN / 2};
    session->due_ns[UM_TIMER_CONNECT] = now_ns;
}

/* The intervals double, because nobody may be there. */
static int64_t request_interval_ns(const um_receiver_session *session)
{
    enum { DOUBLED_MAX = 5 };
    uint32_t doubled = session->connection.attempts - 1;
    return session->config.connect_interval_ns << (doubled < DOUBLED_MAX ? doubled : DOUBLED_MAX);
}

/* Returns when to give up: after the time of maximum_connect_attempts requests at the initial interval. */
static int64_t give_up_ns(const um_receiver_session *session)
{
    int64_t interval_ns = session->config.connect_interval_ns, attempts = session->config.maximum_connect_attempts;
    return attempts > UM_NEVER_NS / 2 / interval_ns ? UM_NEVER_NS
                                                    : session->connection.first_requested_ns + attempts * interval_ns;
}

static void send_request(um_receiver_session *session, int64_t now_ns)
{
    uint8_t datagram[UM_LBTRU_CREQ_BYTES];
    um_connection *connection = &session->connection;
    um_lbtru_options options = {session->config.id.session_id, connection->proposed_id, true};
    if (connection->attempts++ == 0)
        connection->first_requested_ns = now_ns;
    connection->requested_ns = now_ns;
    session->due_ns[UM_TIMER_CONNECT] = um_earliest_ns(now_ns + request_interval_ns(session), give_up_ns(session));
    um_receiver_session_send_control(session, datagram, um_lbtru_write_creq(datagram, &options));
    UM_COUNT(session->counters.creqs_sent, 1);
}

static void send_acknowledgement(um_receiver_session *session, int64_t now_ns)
{
    uint8_t datagram[UM_LBTRU_ACK_BYTES];
    um_lbtru_options options = {session->config.id.session_id, session->connection.client_id, true};
    session->due_ns[UM_TIMER_ACKNOWLEDGE] = now_ns + session->config.acknowledgement_interval_ns;
    um_receiver_session_send_control(
        session, datagram, um_lbtru_write_ack(datagram, &options, !session->interest.was_sent, session->next_sqn - 1));
    UM_COUNT(session->counters.acks_sent, 1);
}

void um_connection_on_syn(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    um_connection *connection = &session->connection;
    if (connection->state != UM_CONNECTION_CONNECTING || packet->sqn != connection->proposed_id)
        return;
    connection->state = UM_CONNECTION_ESTABLISHED;
    connection->established_ns = now_ns;
    connection->has_client_id = true;
    connection->client_id = packet->client_id;
    connection->attempts = 0;
    UM_COUNT(session->counters.connects, 1);
    um_interest_on_connected(session, now_ns);
    um_topic_reports_restart(session);
    send_acknowledgement(session, now_ns); /* must precede status messages: it makes the receiver a client */
}

void um_connection_on_reset(um_receiver_session *session, int64_t now_ns)
{
    um_connection *connection = &session->connection;
    UM_COUNT(session->counters.resets_rcved, 1);
    if (connection->state != UM_CONNECTION_ESTABLISHED)
        return;
    connection->state = UM_CONNECTION_CONNECTING;
    int64_t next_ns = connection->requested_ns + session->config.connect_interval_ns;
    session->due_ns[UM_TIMER_CONNECT] = next_ns > now_ns ? next_ns : now_ns;
}

int64_t um_connection_tick(um_receiver_session *session, int64_t now_ns, bool *is_refused)
{
    um_connection *connection = &session->connection;
    if (UM_LIKELY(connection->state != UM_CONNECTION_CONNECTING))
        return UM_NEVER_NS;
    if (now_ns < session->due_ns[UM_TIMER_CONNECT])
        return session->due_ns[UM_TIMER_CONNECT];
    if (session->last_activity_ns > connection->requested_ns)
        connection->attempts = 0; /* a source that sends is alive, even if its answers do not arrive */
    int64_t wait_ns;
    if (connection->attempts > 0 && now_ns >= give_up_ns(session))
        *is_refused = true;
    else if ((wait_ns = um_receiver_session_contact_wait_ns(session, now_ns)) != 0)
        session->due_ns[UM_TIMER_CONNECT] = now_ns + wait_ns;
    else
        send_request(session, now_ns);
    return session->due_ns[UM_TIMER_CONNECT];
}

int64_t um_connection_acknowledge_tick(um_receiver_session *session, int64_t now_ns)
{
    if (UM_LIKELY(!session->connection.has_client_id))
        return UM_NEVER_NS;
    if (now_ns >= session->due_ns[UM_TIMER_ACKNOWLEDGE])
        send_acknowledgement(session, now_ns);
    return session->due_ns[UM_TIMER_ACKNOWLEDGE];
}
