#include "core/receiver/interest.h"

enum { TOPICS_MAX = 1024, RETRY_NS = 20000000, CONNECTED_NS = 1000000 };

void um_interest_init(um_receiver_session *session)
{
    session->interest = (um_interest){0};
    session->due_ns[UM_TIMER_INTEREST] = UM_NEVER_NS;
}

/* Schedules an interest, but not while an answer to the previous one may be on its way. */
static void schedule_interest(um_receiver_session *session, int64_t now_ns)
{
    um_interest *interest = &session->interest;
    int64_t again_ns = interest->version == 0 ? now_ns : interest->sent_ns + RETRY_NS;
    interest->attempts = 0;
    session->due_ns[UM_TIMER_INTEREST] = interest->is_in_force || again_ns < now_ns ? now_ns : again_ns;
    interest->is_in_force = false;
}

/* ---- topics are added and removed ---- */

/* Returns another controller of the topic, or NULL. */
static const um_delivery *other_of_topic(um_receiver_session *session, const um_delivery *delivery)
{
    um_delivery *other = um_topic_table_slot(&session->topics, delivery->topic_index)->first;
    return other != delivery ? other : delivery->next_of_topic;
}

void um_interest_on_mapped(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_interest *interest = &session->interest;
    const um_delivery *other = other_of_topic(session, delivery);
    if (!interest->is_offered)
        return;
    if (other != NULL) { /* the source sends the topic already, or will */
        delivery->is_awaiting_interest = other->is_awaiting_interest;
        if (um_serial_before(delivery->mapped_sqn, other->mapped_sqn))
            delivery->mapped_sqn = other->mapped_sqn;
        return;
    }
    delivery->is_awaiting_interest = interest->version != 0; /* without an interest the source sends all topics */
    interest->is_changed = true;
    schedule_interest(session, now_ns);
}

void um_interest_on_unmapped(um_receiver_session *session, const um_delivery *delivery)
{
    um_interest *interest = &session->interest;
    if (!interest->is_offered || other_of_topic(session, delivery) != NULL)
        return;
    interest->is_changed = true;
    schedule_interest(session, interest->sent_ns);
}

/* ---- reports of the source ---- */

void um_interest_on_connected(um_receiver_session *session, int64_t now_ns)
{
    um_interest *interest = &session->interest;
    interest->was_sent = interest->is_in_force = interest->has_been_in_force = false;
    interest->attempts = 0;
    session->due_ns[UM_TIMER_INTEREST] = interest->is_offered
                                             ? now_ns + CONNECTED_NS
                                             : UM_NEVER_NS; /* behind the acknowledgement that makes it a client */
}

/* Lets waiting controllers start at since_sqn, or at next_sqn if that is later, because they skipped data until now. */
static void begin_topics(um_receiver_session *session, uint32_t since_sqn)
{
    if (um_serial_before(since_sqn, session->next_sqn))
        since_sqn = session->next_sqn;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        if (!d->is_awaiting_interest)
            continue;
        d->is_awaiting_interest = false;
        d->mapped_sqn = since_sqn;
    }
}

bool um_interest_is_report_valid(const um_interest *interest, const um_filter_report *report)
{
    if (interest->version == 0)
        return false;
    if (report->version == 0)
        return interest->has_been_in_force;
    return report->version - interest->first_version <= interest->version - interest->first_version;
}

void um_interest_on_report(um_receiver_session *session, const um_filter_report *report, int64_t now_ns)
{
    um_interest *interest = &session->interest;
    UM_COUNT(session->counters.filter_reports_rcved, 1);
    interest->has_been_in_force |= report->version != 0 && um_interest_is_report_valid(interest, report);
    if (!interest->is_offered) {
        interest->is_offered = interest->is_changed = true;
        schedule_interest(session, now_ns);
    } else if (report->version == interest->version && report->version != 0 && !interest->is_changed) {
        if (!interest->is_in_force)
            begin_topics(session, report->since_sqn);
        interest->is_in_force = true;
        session->due_ns[UM_TIMER_INTEREST] = UM_NEVER_NS;
    } else if (report->version != 0 && um_serial_before(interest->version, report->version)) {
        interest->version = interest->first_version = report->version; /* of an earlier receiver: use later ones */
        interest->is_changed = true;
        schedule_interest(session, now_ns);
    } else if (interest->is_in_force) {
        schedule_interest(session, now_ns);
    }
}

/* ---- sending ---- */

static uint32_t topics_a_part(const um_receiver_session *session)
{
    uint32_t fit = (session->config.datagram_max_bytes - UM_INTEREST_HEAD_BYTES) / UM_TCP_SSF_REQUEST_BYTES;
    return fit < UM_INTEREST_PART_TOPICS_MAX ? fit : UM_INTEREST_PART_TOPICS_MAX;
}

/* Returns the next first controller of a topic, so that each topic is listed once. */
static const um_delivery *next_topic(um_receiver_session *session, const um_delivery *from)
{
    while (from != NULL && um_topic_table_slot(&session->topics, from->topic_index)->first != from)
        from = from->next;
    return from;
}

static void send_parts(um_receiver_session *session)
{
    uint8_t datagram[UM_INTEREST_BYTES_MAX];
    um_interest *interest = &session->interest;
    um_lbtru_options options = {session->config.id.session_id, session->connection.client_id, true};
    uint32_t count = session->topics.count, most = topics_a_part(session);
    um_interest_part part = {.version = interest->version, .needs_all = count > TOPICS_MAX};
    part.part_count = (uint8_t)(part.needs_all ? 1 : (count + most - 1) / most);
    const um_delivery *topic = part.needs_all ? NULL : next_topic(session, session->controllers);
    for (; part.part < part.part_count; part.part++) {
        uint32_t length = um_interest_write(datagram, &options, session->next_sqn, &part);
        for (uint32_t i = 0; i < most && topic != NULL; i++) {
            length += um_interest_add_topic(datagram + length, &options, topic->topic_index);
            topic = next_topic(session, topic->next);
        }
        um_receiver_session_send_control(session, datagram, length);
        UM_COUNT(session->counters.interests_sent, 1);
    }
}

/* The first version is random, so that it almost certainly differs from those of earlier receivers at this address. */
static void begin_version(um_receiver_session *session)
{
    um_interest *interest = &session->interest;
    bool is_first = interest->version == interest->first_version;
    while (interest->version == 0)
        interest->version = (uint32_t)um_random_next(&session->random);
    interest->version += interest->version == UINT32_MAX ? 2 : 1;
    if (is_first)
        interest->first_version = interest->version;
}

int64_t um_interest_tick(um_receiver_session *session, int64_t now_ns)
{
    um_interest *interest = &session->interest;
    if (UM_LIKELY(session->due_ns[UM_TIMER_INTEREST] == UM_NEVER_NS))
        return UM_NEVER_NS;
    if (session->connection.state != UM_CONNECTION_ESTABLISHED || session->controller_count == 0)
        return UM_NEVER_NS; /* a new connection sends it */
    if (now_ns < session->due_ns[UM_TIMER_INTEREST])
        return session->due_ns[UM_TIMER_INTEREST];
    if (interest->is_changed)
        begin_version(session);
    interest->is_changed = false;
    interest->was_sent = true;
    interest->sent_ns = now_ns;
    send_parts(session);
    int64_t again_ns = (int64_t)RETRY_NS << (interest->attempts < 8 ? interest->attempts : 8);
    int64_t most_ns = session->config.acknowledgement_interval_ns;
    interest->attempts++;
    session->due_ns[UM_TIMER_INTEREST] = now_ns + (again_ns < most_ns || most_ns < RETRY_NS ? again_ns : most_ns);
    return session->due_ns[UM_TIMER_INTEREST];
}
