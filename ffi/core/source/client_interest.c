#include "core/source/client_interest.h"

#include "core/source/datagram_building.h"
#include "core/wire/interest_message.h"

enum {
    REPORT_AFTER = 1024, /* datagrams passed over */
    REPORT_AFTER_BYTES = 128 * 1024,
    OLDER_MAX = 1024, /* older versions within this distance are late; beyond it the receiver has restarted */
};

/* ---- selecting ---- */

static bool is_wanted(const um_client *client, const uint8_t *messages, uint32_t length)
{
    return !client->interest.is_filtered || um_topic_filter_is_wanted(&client->interest.filter, messages, length);
}

uint32_t um_clients_select_all(um_source_session *session, const um_sent *sent, uint32_t slot)
{
    um_client_map *clients = &session->clients;
    uint64_t *set = clients->selections[slot].clients;
    um_datagram_reader reader = um_datagram_read(session, sent);
    const uint8_t *messages;
    uint32_t length, count = 0;
    memset(set, 0, um_client_map_words(clients) * sizeof *set);
    while (count < clients->count && um_datagram_read_next(session, &reader, &messages, &length)) {
        for (uint32_t place = 0; place < clients->count; place++) {
            if (um_client_map_is_in(set, place) || !is_wanted(&clients->clients[place], messages, length))
                continue;
            set[place / 64] |= (uint64_t)1 << place % 64;
            count++;
        }
    }
    return count;
}

uint32_t um_clients_copies(const um_source_session *session, uint32_t slot)
{
    const um_client_map *clients = &session->clients;
    uint32_t count = 0;
    if (!um_clients_has_filters(session))
        return session->copies;
    for (uint32_t i = 0; i < um_client_map_words(clients); i++)
        count += (uint32_t)__builtin_popcountll(clients->selections[slot].clients[i]);
    return count;
}

bool um_clients_is_wanted(um_source_session *session, const um_client *client, const um_sent *sent)
{
    um_datagram_reader reader = um_datagram_read(session, sent);
    const uint8_t *messages;
    uint32_t length;
    while (um_datagram_read_next(session, &reader, &messages, &length))
        if (is_wanted(client, messages, length))
            return true;
    return false;
}

/* ---- reporting ---- */

static uint64_t all_parts(uint32_t count)
{
    return UINT64_MAX >> (UM_INTEREST_PARTS_MAX - count);
}

/* Returns true if all parts of the newest version have arrived. */
static bool is_whole(const um_client_interest *interest)
{
    return interest->version != 0 && interest->parts == all_parts(interest->part_count);
}

/* Returns false if the link does not accept the report. */
static bool report(um_source_session *session, const um_client *client, uint32_t first_sqn, uint32_t count)
{
    uint8_t datagram[UM_FILTER_REPORT_BYTES];
    const um_client_interest *interest = &client->interest;
    um_filter_report report = {first_sqn, count, is_whole(interest) ? interest->version : 0, interest->since_sqn};
    uint32_t length = um_filter_report_write(datagram, session->config.session_id, session->trail_sqn, &report);
    if (!um_fan_out_send_to(&session->fan_out, client->address, datagram, length))
        return false;
    UM_COUNT(session->counters.filter_reports_sent, 1);
    return true;
}

static void report_passed(um_source_session *session, um_client *client)
{
    if (!report(session, client, session->next_sqn - client->behind - client->passed, client->passed))
        return;
    client->passed = 0;
    client->passed_bytes = 0;
}

void um_clients_report_passed(um_source_session *session)
{
    um_client_map *clients = &session->clients;
    session->passed_due_ns = UM_NEVER_NS;
    if (!um_clients_has_filters(session))
        return;
    for (uint32_t i = 0; i < clients->count; i++)
        if (clients->clients[i].passed > 0)
            report_passed(session, &clients->clients[i]);
}

void um_clients_note_passed(um_source_session *session, int64_t now_ns)
{
    um_client_map *clients = &session->clients;
    bool has_passed = false;
    if (UM_LIKELY(!um_clients_has_filters(session)))
        return;
    for (uint32_t i = 0; i < clients->count; i++) {
        um_client *client = &clients->clients[i];
        if (client->passed >= REPORT_AFTER || client->passed_bytes >= REPORT_AFTER_BYTES)
            report_passed(session, client);
        has_passed |= client->passed > 0;
    }
    if (has_passed && session->passed_due_ns == UM_NEVER_NS)
        session->passed_due_ns = now_ns + um_source_timing_first_sm_ns(&session->timing);
}

int64_t um_clients_tick_passed(um_source_session *session, int64_t now_ns)
{
    if (now_ns >= session->passed_due_ns)
        um_clients_report_passed(session);
    return session->passed_due_ns;
}

void um_clients_pass_over(um_source_session *session, um_client *client, uint32_t sqn, uint32_t count)
{
    report(session, client, sqn, count);
}

/* ---- interests ---- */

/* Starts a version: until it is whole the client is sent everything, so that no message it needs is left out. */
static void start_version(um_client_interest *interest, const um_interest_part *part)
{
    um_topic_filter_clear(&interest->filter);
    interest->version = part->version;
    interest->part_count = part->part_count;
    interest->parts = 0;
    interest->needs_all = interest->is_filtered = false;
}

void um_clients_on_acknowledged(um_source_session *session, um_client *client, bool has_sent_interest)
{
    static const um_interest_part NOTHING = {.part_count = 1};
    if (!um_clients_has_filters(session))
        return;
    if (!has_sent_interest) {
        start_version(&client->interest, &NOTHING);
        client->passed = client->passed_bytes = 0;
    }
    if (client->interest.version == 0)
        report_passed(session, client);
}

/* Adds a part that has not arrived before. */
static void add_part(um_source_session *session, um_client *client, const um_interest_part *part, um_packet *topics)
{
    um_client_interest *interest = &client->interest;
    uint32_t topic_index;
    interest->needs_all |= part->needs_all;
    while (um_interest_next_topic(topics, &topic_index))
        interest->needs_all |= !um_topic_filter_add(&interest->filter, topic_index);
    interest->parts |= (uint64_t)1 << part->part;
    if (!is_whole(interest))
        return;
    interest->is_filtered = !interest->needs_all;
    interest->since_sqn = session->next_sqn - client->behind;
}

bool um_clients_on_interest(um_source_session *session, um_address from, const um_packet *packet)
{
    um_interest_part part;
    um_packet topics;
    um_client *client = um_client_map_find(&session->clients, from);
    if (!um_clients_has_filters(session) || client == NULL || !um_interest_decode(packet, &part, &topics))
        return false;
    um_client_interest *interest = &client->interest;
    UM_COUNT(session->counters.interests_rcved, 1);
    int32_t ahead = um_serial_diff(part.version, interest->version);
    bool is_late = interest->version != 0 && ahead < 0 && ahead >= -OLDER_MAX;
    if (!is_late && (ahead != 0 || part.part_count != interest->part_count))
        start_version(interest, &part);
    bool is_new = !is_late && !(interest->parts >> part.part & 1);
    if (is_new)
        add_part(session, client, &part, &topics);
    if (is_whole(interest))
        report_passed(session, client);
    return true;
}
