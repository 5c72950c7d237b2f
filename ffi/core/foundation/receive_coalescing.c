#include "core/foundation/receive_coalescing.h"

void um_coalescing_init(um_receive_coalescing *coalescing, int64_t interval_ns, int64_t interval_max_ns)
{
    *coalescing = (um_receive_coalescing){
        .interval_ns = interval_ns, .interval_max_ns = interval_max_ns, .current_ns = interval_ns};
}

int64_t um_coalescing_next_ns(um_receive_coalescing *coalescing, uint32_t ring_frames, uint64_t window_bytes,
                              int64_t due_in_ns)
{
    int64_t usual_ns = coalescing->interval_ns, current_ns = coalescing->current_ns;
    if (ring_frames == 0)
        return usual_ns;
    uint32_t frames = coalescing->gathered_frames;
    uint64_t bytes = coalescing->gathered_bytes;
    if (frames > ring_frames / 4 || bytes > window_bytes / 8 * 5)
        current_ns = current_ns / 2 > UM_COALESCING_MIN_NS ? current_ns / 2 : UM_COALESCING_MIN_NS;
    else if (frames < ring_frames / 6 && bytes < window_bytes / 2 &&
             current_ns + usual_ns / 8 <= coalescing->interval_max_ns)
        current_ns += usual_ns / 8;
    coalescing->current_ns = current_ns;
    coalescing->gathered_frames = 0;
    coalescing->gathered_bytes = 0;
    int64_t longest_ns = due_in_ns > usual_ns ? due_in_ns : usual_ns;
    return um_earliest_ns(current_ns, longest_ns);
}

/* Number of datagrams beyond two per send. Those two may be a reply and, on the same host, the datagram that was sent:
 * coalescing must not delay the round trips of a request-reply application. */
static uint32_t excess_datagrams(um_receive_coalescing *coalescing, uint32_t datagrams, uint32_t send_count)
{
    uint32_t due = coalescing->answers_due + 2 * (send_count - coalescing->sends_seen);
    uint32_t answers = datagrams < due ? datagrams : due;
    coalescing->sends_seen = send_count;
    coalescing->answers_due = due - answers < UM_COALESCING_HOT_DATAGRAMS ? due - answers : UM_COALESCING_HOT_DATAGRAMS;
    return datagrams - answers;
}

/* The datagrams of several passes are added up: a ring delivers them one by one, so a loop that sleeps in between is
 * woken for a few at a time although it is under load. */
void um_coalescing_on_pass(um_receive_coalescing *coalescing, uint32_t datagrams, uint32_t send_count, int64_t now_ns)
{
    uint32_t counted = excess_datagrams(coalescing, datagrams, send_count);
    if (now_ns - coalescing->load_since_ns > UM_COALESCING_LOAD_SPAN_NS) {
        coalescing->load_since_ns = now_ns;
        coalescing->load_datagrams = 0;
    }
    coalescing->load_datagrams += counted;
    if (coalescing->load_datagrams < UM_COALESCING_HOT_DATAGRAMS)
        return;
    /* The rate of a new load is not known yet. A load that continues may be noticed up to an interval later. */
    if (now_ns >= coalescing->hot_until_ns + coalescing->interval_max_ns)
        coalescing->current_ns = coalescing->interval_ns;
    coalescing->hot_until_ns = now_ns + UM_COALESCING_HOT_NS;
}
