#include "core/source/receiver_accounting.h"

#include "core/delivery/message_queue.h"

enum { ACTIVE_NS = 1000000000 };

/* A receiver that was idle for this long has gone: it restarted, with another address. */
static const int64_t GONE_NS = 120000000000;

static bool is_replaceable(const um_receiver_account *account, int64_t now_ns)
{
    return !account->is_cut_off && (!account->is_member || now_ns - account->last_seen_ns >= GONE_NS);
}

static um_receiver_account *idle_longest(um_receiver_accounting *accounting, int64_t now_ns)
{
    um_receiver_account *found = NULL;
    for (uint32_t i = 0; i < accounting->count; i++) {
        um_receiver_account *account = &accounting->accounts[i];
        if (is_replaceable(account, now_ns) && (found == NULL || account->last_seen_ns < found->last_seen_ns))
            found = account;
    }
    return found;
}

void um_accounting_init(um_receiver_accounting *accounting, void *memory)
{
    accounting->topic_memory = memory;
    atomic_init(&accounting->message_max_bytes, UINT32_MAX);
}

static void forget_topics(um_receiver_account *account)
{
    account->is_overfull = false;
    if (account->topics.count > 0)
        um_topic_filter_clear(&account->topics);
}

/* True if the receiver has exactly the topics of the report. */
static bool is_same(const um_receiver_account *account, const um_topic_report *report)
{
    for (uint32_t i = 0; i < report->count; i++)
        if (!um_topic_filter_has(&account->topics, report->topics[i].topic_index))
            return false;
    return account->topics.count == report->count;
}

static void note_topic(um_receiver_accounting *accounting, um_receiver_account *account, um_reported_topic topic)
{
    if (!um_topic_filter_add(&account->topics, topic.topic_index)) {
        account->is_overfull = true;
        return;
    }
    bool is_limit = topic.message_max_bytes >= UM_QUEUE_MESSAGE_BYTES_MIN;
    account->message_max_bytes[um_topic_filter_place(&account->topics, topic.topic_index)] =
        is_limit ? topic.message_max_bytes : 0;
    if (is_limit &&
        topic.message_max_bytes < atomic_load_explicit(&accounting->message_max_bytes, memory_order_relaxed))
        atomic_store_explicit(&accounting->message_max_bytes, topic.message_max_bytes, memory_order_relaxed);
}

void um_accounting_on_topics(um_receiver_accounting *accounting, um_receiver_account *account,
                             const um_topic_report *report)
{
    if (account->topics.slots == NULL)
        return;
    account->has_topics = true;
    if (report == NULL || (report->is_first && !is_same(account, report)))
        forget_topics(account);
    for (uint32_t i = 0; report != NULL && i < report->count; i++)
        note_topic(accounting, account, report->topics[i]);
}

uint32_t um_account_message_max(const um_receiver_account *account, uint32_t topic_index, int64_t now_ns)
{
    bool is_gone = now_ns - account->last_seen_ns >= GONE_NS;
    if (is_gone || account->topics.slots == NULL || !um_topic_filter_has(&account->topics, topic_index))
        return UINT32_MAX;
    uint32_t bytes = account->message_max_bytes[um_topic_filter_place(&account->topics, topic_index)];
    return bytes != 0 ? bytes : UINT32_MAX;
}

const um_receiver_account *um_accounting_find(const um_receiver_accounting *accounting, um_address address)
{
    for (uint32_t i = 0; i < accounting->count; i++)
        if (um_address_equal(accounting->accounts[i].address, address))
            return &accounting->accounts[i];
    return NULL;
}

static void init_topics(const um_receiver_accounting *accounting, um_receiver_account *account)
{
    size_t place = (size_t)(account - accounting->accounts);
    if (accounting->topic_memory == NULL)
        return;
    uint8_t *memory = accounting->topic_memory + place * um_account_topics_footprint();
    um_topic_filter_init(&account->topics, memory, UM_ACCOUNT_TOPICS_MAX);
    account->message_max_bytes = (uint32_t *)(memory + um_topic_filter_footprint(UM_ACCOUNT_TOPICS_MAX));
}

um_receiver_account *um_accounting_of(um_receiver_accounting *accounting, um_address address, int64_t now_ns)
{
    um_receiver_account *account = (um_receiver_account *)um_accounting_find(accounting, address);
    if (account == NULL) {
        account = accounting->count < UM_ACCOUNTS_MAX ? &accounting->accounts[accounting->count++]
                                                      : idle_longest(accounting, now_ns);
        if (account == NULL)
            return NULL;
        forget_topics(account);
        *account = (um_receiver_account){.address = address,
                                         .last_nak_ns = INT64_MIN,
                                         .repaired_ns = INT64_MIN,
                                         .bucket = {0, INT64_MIN},
                                         .over_ns = INT64_MIN,
                                         .noisy_ns = INT64_MIN,
                                         .loses_ns = INT64_MIN,
                                         .slow_ns = INT64_MIN,
                                         .cut_loose_ns = INT64_MIN,
                                         .gave_up_ns = INT64_MIN,
                                         .too_long_ns = INT64_MIN};
        init_topics(accounting, account);
    }
    account->last_seen_ns = now_ns;
    return account;
}

um_receiver_account *um_accounting_on_status(um_receiver_accounting *accounting, um_address address, uint32_t sqn,
                                             int64_t now_ns)
{
    um_receiver_account *account = um_accounting_of(accounting, address, now_ns);
    if (account == NULL)
        return NULL;
    bool has_advanced = account->has_reported && um_serial_before(account->reported_sqn, sqn);
    account->is_new_member = has_advanced && !account->is_member;
    account->is_member |= has_advanced;
    account->has_reported = true;
    account->reported_sqn = sqn;
    return account;
}

/* A lower number than before is that of a new session of the receiver. */
uint32_t um_accounting_on_given_up(um_receiver_account *account, uint32_t given_up, uint32_t unconfirmed)
{
    uint32_t before = account->session_given_up;
    uint32_t more = given_up >= before ? given_up - before : given_up;
    account->given_up += more;
    account->session_given_up = given_up;
    account->session_unconfirmed = unconfirmed;
    return more;
}

uint32_t um_accounting_active_members(const um_receiver_accounting *accounting, int64_t now_ns)
{
    uint32_t active = 0;
    for (uint32_t i = 0; i < accounting->count; i++) {
        const um_receiver_account *account = &accounting->accounts[i];
        active += account->is_member && account->last_nak_ns != INT64_MIN && now_ns - account->last_nak_ns < ACTIVE_NS;
    }
    return active;
}

bool um_accounting_refuse(um_receiver_account *account, int64_t cutoff_interval_ns, int64_t now_ns)
{
    UM_COUNT(account->refused, 1);
    if (account->over_ns == INT64_MIN || now_ns - account->over_ns > ACTIVE_NS)
        account->over_since_ns = now_ns;
    account->over_ns = now_ns;
    if (account->is_cut_off || cutoff_interval_ns == 0 || now_ns - account->over_since_ns < cutoff_interval_ns)
        return false;
    account->is_cut_off = true;
    return true;
}
