/* Topic reports: their bytes, what is refused, and the topics that a source notes of a receiver. */
#include "check.h"
#include "core/delivery/message_queue.h"
#include "core/source/receiver_accounting.h"
#include "core/wire/topic_report.h"

#include <stdlib.h>
#include <string.h>

static um_packet packet_of(const uint8_t *body, uint32_t length)
{
    return (um_packet){.type = UM_LBTRM_DATA, .body = body, .body_length = length};
}

TEST("W1", "a topic report is found behind other control messages, and read as it was written")
{
    uint8_t body[2 * UM_TOPIC_REPORT_LBMC_BYTES_MAX], other[4] = {1};
    um_topic_report report = {.is_first = true, .count = UM_TOPIC_REPORT_TOPICS_MAX}, read;
    for (uint32_t i = 0; i < report.count; i++)
        report.topics[i] = (um_reported_topic){i << 24 | i, UINT32_MAX - i};
    uint32_t at = um_lbmc_write_extended(body, UM_LBMC_OWN_ID, 9, other, sizeof other);
    um_packet packet = packet_of(body, at);
    CHECK(!um_topic_report_decode(&packet, &read));
    uint32_t bytes = um_topic_report_write(body + at, &report);
    CHECK_EQ(bytes, UM_TOPIC_REPORT_LBMC_BYTES_MAX);
    packet.body_length = at + bytes;
    CHECK(um_topic_report_decode(&packet, &read));
    CHECK(read.is_first && read.count == report.count && memcmp(read.topics, report.topics, sizeof read.topics) == 0);
    for (uint32_t cut = 0; cut < at + bytes; cut++) {
        packet.body_length = cut;
        CHECK(!um_topic_report_decode(&packet, &read));
    }
}

TEST("W1", "a report of another version, or of a part of a topic, is refused")
{
    uint8_t body[64], data[20] = {UM_TOPIC_REPORT_VERSION + 1};
    um_topic_report read;
    um_packet packet =
        packet_of(body, um_lbmc_write_extended(body, UM_LBMC_OWN_ID, UM_TOPIC_REPORT_OPTION_SUBTYPE, data, 12));
    CHECK(!um_topic_report_decode(&packet, &read));
    data[0] = UM_TOPIC_REPORT_VERSION;
    packet.body_length = um_lbmc_write_extended(body, UM_LBMC_OWN_ID, UM_TOPIC_REPORT_OPTION_SUBTYPE, data, 16);
    CHECK(!um_topic_report_decode(&packet, &read));
    packet.body_length = um_lbmc_write_extended(body, UM_LBMC_OWN_ID, UM_TOPIC_REPORT_OPTION_SUBTYPE, data, 12);
    CHECK(um_topic_report_decode(&packet, &read));
    CHECK(!read.is_first && read.count == 1);
}

TEST("", "a first report replaces a receiver's topics, others add; too many topics, or none reported, are every topic")
{
    um_receiver_accounting *accounting = calloc(1, sizeof *accounting);
    void *memory = calloc(1, um_accounting_topics_footprint());
    um_accounting_init(accounting, memory);
    um_receiver_account *account = um_accounting_of(accounting, um_address_of_v4(0x0a000001, 1), 0);
    CHECK(um_account_wants(account, 1) && um_account_wants(NULL, 1));
    um_topic_report report = {true, 2, {{0, 0}, {7, 0}}};
    um_accounting_on_topics(accounting, account, &report);
    CHECK(um_account_wants(account, 0) && um_account_wants(account, 7) && !um_account_wants(account, 8));
    report = (um_topic_report){false, 1, {{8, 0}}};
    um_accounting_on_topics(accounting, account, &report);
    CHECK(um_account_wants(account, 7) && um_account_wants(account, 8));
    report.is_first = true;
    um_accounting_on_topics(accounting, account, &report);
    CHECK(!um_account_wants(account, 0) && !um_account_wants(account, 7) && um_account_wants(account, 8));
    report = (um_topic_report){.count = 1};
    for (uint32_t topic = 0; topic <= UM_ACCOUNT_TOPICS_MAX; topic++) {
        report.topics[0].topic_index = 100 + topic;
        um_accounting_on_topics(accounting, account, &report);
    }
    CHECK(um_account_wants(account, 1));
    um_accounting_on_topics(accounting, account, NULL);
    CHECK(!um_account_wants(account, 1) && !um_account_wants(account, 100));
    free(memory);
    free(accounting);
}

TEST("", "a receiver's limit of a topic holds until it reports another, leaves, or was idle for two minutes")
{
    um_receiver_accounting *accounting = calloc(1, sizeof *accounting);
    void *memory = calloc(1, um_accounting_topics_footprint());
    um_accounting_init(accounting, memory);
    CHECK_EQ(atomic_load(&accounting->message_max_bytes), UINT32_MAX);
    /* The last account, so that its topics end where the memory ends. */
    for (uint32_t i = 0; i + 1 < UM_ACCOUNTS_MAX; i++)
        um_accounting_of(accounting, um_address_of_v4(0x0a000001, i), 0);
    um_receiver_account *account = um_accounting_of(accounting, um_address_of_v4(0x0a000002, 1), 0);
    CHECK_EQ(um_account_message_max(account, 7, 0), UINT32_MAX);
    um_topic_report report = {true, 3, {{0, 70000}, {7, 90000}, {8, 0}}};
    um_accounting_on_topics(accounting, account, &report);
    CHECK_EQ(um_account_message_max(account, 0, 0), 70000);
    CHECK_EQ(um_account_message_max(account, 7, 0), 90000);
    CHECK_EQ(um_account_message_max(account, 8, 0), UINT32_MAX);
    CHECK_EQ(um_account_message_max(account, 9, 0), UINT32_MAX);
    CHECK_EQ(um_account_message_max(&accounting->accounts[0], 7, 0), UINT32_MAX);
    CHECK_EQ(atomic_load(&accounting->message_max_bytes), 70000);
    CHECK_EQ(um_account_message_max(account, 7, INT64_C(119) * 1000000000), 90000);
    CHECK_EQ(um_account_message_max(account, 7, INT64_C(120) * 1000000000), UINT32_MAX);
    report.topics[1].message_max_bytes = 80000;
    um_accounting_on_topics(accounting, account, &report);
    CHECK_EQ(um_account_message_max(account, 7, 0), 80000);
    report.topics[1].message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN - 1; /* forged: no receiver has such a limit */
    um_accounting_on_topics(accounting, account, &report);
    CHECK_EQ(um_account_message_max(account, 7, 0), UINT32_MAX);
    CHECK_EQ(atomic_load(&accounting->message_max_bytes), 70000);
    report.topics[1].message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN;
    um_accounting_on_topics(accounting, account, &report);
    CHECK_EQ(um_account_message_max(account, 7, 0), UM_QUEUE_MESSAGE_BYTES_MIN);
    CHECK_EQ(atomic_load(&accounting->message_max_bytes), UM_QUEUE_MESSAGE_BYTES_MIN);
    um_accounting_on_topics(accounting, account, NULL);
    CHECK_EQ(um_account_message_max(account, 7, 0), UINT32_MAX);
    free(memory);
    free(accounting);
}

CHECK_MAIN
