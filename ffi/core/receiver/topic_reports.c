#include "core/receiver/topic_reports.h"

#include "core/wire/topic_report.h"

void um_topic_reports_on_mapped(um_receiver_session *session)
{
    session->is_topic_report_due = true;
}

void um_topic_reports_restart(um_receiver_session *session)
{
    session->has_reported_topics = false;
    session->is_topic_report_due = true;
    session->due_ns[UM_TIMER_STATUS] =
        um_earliest_ns(session->due_ns[UM_TIMER_STATUS], session->status_sent_ns + session->config.status_interval_ns);
}

/* A receiver of fragments accepts every length. */
uint32_t um_topic_reports_message_max(const um_delivery *first)
{
    uint32_t shortest = 0;
    for (const um_delivery *d = first; d != NULL; d = d->next_of_topic) {
        uint32_t bytes = d->receiver->queue->message_max_bytes;
        if (d->receiver->config.ordered_delivery != UM_ORDERED_FRAGMENTS && (shortest == 0 || bytes < shortest))
            shortest = bytes;
    }
    return shortest;
}

/* Ends when the round is complete, or the report is full. The controllers of a round are marked with its number. */
static void collect(um_receiver_session *session, um_topic_report *report)
{
    um_delivery *d = session->controllers;
    for (; d != NULL && report->count < UM_TOPIC_REPORT_TOPICS_MAX; d = d->next) {
        bool is_of_topic = um_topic_table_slot(&session->topics, d->topic_index)->first == d;
        if (!is_of_topic || d->topic_round == session->topic_round)
            continue;
        d->topic_round = session->topic_round;
        report->topics[report->count++] = (um_reported_topic){d->topic_index, um_topic_reports_message_max(d)};
    }
    session->is_topic_round_complete = d == NULL;
}

static void begin_round(um_receiver_session *session)
{
    session->topic_round += session->topic_round == UINT8_MAX ? 2 : 1; /* 0: never reported */
}

uint32_t um_topic_reports_write(um_receiver_session *session, uint8_t *out)
{
    um_topic_report report = {.is_first =
                                  !session->has_reported_topics || session->topics.count <= UM_TOPIC_REPORT_TOPICS_MAX};
    if (report.is_first || (session->is_topic_round_complete && !session->is_topic_report_due))
        begin_round(session);
    collect(session, &report);
    session->has_reported_topics = true;
    session->is_topic_report_due &= !session->is_topic_round_complete;
    return um_topic_report_write(out, &report);
}
