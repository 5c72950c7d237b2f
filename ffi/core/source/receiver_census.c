#include "core/source/receiver_census.h"

void um_census_init(um_receiver_census *census, int64_t now_ns)
{
    *census = (um_receiver_census){.began_ns = now_ns, .first_ns = UM_NEVER_NS};
}

static int64_t length_ns(const um_receiver_census *census)
{
    int64_t now_ns = census->current.length_ns, before_ns = census->before.length_ns;
    int64_t longest_ns = now_ns > before_ns ? now_ns : before_ns;
    return longest_ns > UM_CENSUS_INTERVAL_NS ? longest_ns : UM_CENSUS_INTERVAL_NS;
}

void um_census_note_interval(um_receiver_census *census, int64_t interval_ns)
{
    if (interval_ns > census->current.length_ns)
        census->current.length_ns = interval_ns;
}

void um_census_advance(um_receiver_census *census, int64_t now_ns)
{
    if (now_ns - census->began_ns < length_ns(census))
        return;
    bool is_next = now_ns - census->began_ns < 2 * length_ns(census);
    if (is_next)
        census->before = census->current;
    else
        memset(&census->before, 0, sizeof census->before);
    memset(&census->current, 0, sizeof census->current);
    census->began_ns = now_ns;
}

static bool mark(um_census_interval *interval, uint32_t bit)
{
    uint64_t mask = (uint64_t)1 << bit % 64;
    bool is_new = !(interval->seen[bit / 64] & mask);
    interval->seen[bit / 64] |= mask;
    interval->count += is_new;
    return is_new;
}

static bool is_marked(const um_census_interval *interval, uint32_t bit)
{
    return interval->seen[bit / 64] >> bit % 64 & 1;
}

void um_census_on_status(um_receiver_census *census, uint64_t receiver_id, int64_t round_trip_ns, int64_t now_ns)
{
    um_census_advance(census, now_ns);
    uint32_t bit = (uint32_t)(receiver_id * 0x9e3779b97f4a7c15u >> 40) % UM_CENSUS_BITS;
    if (mark(&census->current, bit) && !is_marked(&census->before, bit))
        census->has_newcomer = true;
    if (census->first_ns == UM_NEVER_NS)
        census->first_ns = now_ns;
    if (round_trip_ns <= 0)
        return;
    um_census_interval *current = &census->current;
    if (current->longest_ns == 0 || round_trip_ns < current->shortest_ns)
        current->shortest_ns = round_trip_ns;
    if (round_trip_ns > current->longest_ns)
        current->longest_ns = round_trip_ns;
}

uint32_t um_census_receivers(const um_receiver_census *census)
{
    return census->current.count > census->before.count ? census->current.count : census->before.count;
}

int64_t um_census_longest_ns(const um_receiver_census *census)
{
    int64_t now_ns = census->current.longest_ns, before_ns = census->before.longest_ns;
    return now_ns > before_ns ? now_ns : before_ns;
}

int64_t um_census_shortest_ns(const um_receiver_census *census)
{
    int64_t now_ns = census->current.shortest_ns, before_ns = census->before.shortest_ns;
    if (now_ns == 0 || before_ns == 0)
        return now_ns + before_ns;
    return um_earliest_ns(now_ns, before_ns);
}
