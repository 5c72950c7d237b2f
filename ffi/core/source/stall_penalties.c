#include "core/source/stall_penalties.h"

/* Returns the penalty of an address, or NULL. */
static const um_stall_penalty *find(const um_stall_penalties *penalties, um_ip ip)
{
    for (uint32_t i = 0; i < UM_STALL_PENALTIES_MAX; i++)
        if (penalties->places[i].length_ns != 0 && um_ip_equal(penalties->places[i].ip, ip))
            return &penalties->places[i];
    return NULL;
}

/* A free place, or that of the penalty that ends first. */
static um_stall_penalty *make_space(um_stall_penalties *penalties)
{
    um_stall_penalty *place = &penalties->places[0];
    for (uint32_t i = 0; i < UM_STALL_PENALTIES_MAX; i++) {
        um_stall_penalty *other = &penalties->places[i];
        if (other->length_ns == 0)
            return other;
        if (other->until_ns < place->until_ns)
            place = other;
    }
    return place;
}

int64_t um_stall_penalties_add(um_stall_penalties *penalties, um_ip ip, int64_t stall_timeout_ns, int64_t now_ns)
{
    const um_stall_penalty *found = find(penalties, ip);
    um_stall_penalty *place = found == NULL ? make_space(penalties) : &penalties->places[found - penalties->places];
    bool is_first = found == NULL || now_ns >= found->until_ns + found->length_ns;
    int64_t longest_ns = stall_timeout_ns << UM_STALL_DOUBLINGS_MAX;
    int64_t length_ns = is_first ? stall_timeout_ns : 2 * found->length_ns;
    length_ns = um_earliest_ns(length_ns, longest_ns);
    *place = (um_stall_penalty){.ip = ip, .length_ns = length_ns, .until_ns = now_ns + length_ns};
    return place->until_ns;
}

int64_t um_stall_penalties_until_ns(const um_stall_penalties *penalties, um_ip ip, int64_t now_ns)
{
    const um_stall_penalty *found = find(penalties, ip);
    return found == NULL || now_ns >= found->until_ns ? 0 : found->until_ns;
}
