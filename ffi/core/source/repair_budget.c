#include "core/source/repair_budget.h"

enum {
    MEMBERS_MIN = 4,         /* a single member gets a quarter */
    NONMEMBERS_PART = 10,    /* all non-members together get a tenth */
    BURST_BYTES_MIN = 65536, /* minimum capacity of a bucket */
    BURSTS_PER_SECOND = 20,
    NS_PER_SECOND = 1000000000,
};

static bool take(um_repair_bucket *bucket, uint64_t bits_per_second, uint32_t bytes, int64_t now_ns)
{
    int64_t rate = (int64_t)(bits_per_second / 8);
    int64_t most = rate / BURSTS_PER_SECOND > BURST_BYTES_MIN ? rate / BURSTS_PER_SECOND : BURST_BYTES_MIN;
    if (bucket->filled_ns == INT64_MIN)
        *bucket = (um_repair_bucket){most, now_ns};
    int64_t earned =
        (int64_t)((unsigned __int128)(uint64_t)(now_ns - bucket->filled_ns) * (uint64_t)rate / NS_PER_SECOND);
    if (earned > 0) {
        bucket->credit_bytes = earned > most - bucket->credit_bytes ? most : bucket->credit_bytes + earned;
        bucket->filled_ns = now_ns;
    }
    if (bucket->credit_bytes < (int64_t)bytes)
        return false;
    bucket->credit_bytes -= bytes;
    return true;
}

bool um_repair_budget_take(um_repair_budget *budget, um_receiver_account *account, uint32_t active_members,
                           uint32_t bytes, int64_t now_ns)
{
    if (budget->bits_per_second == 0)
        return true;
    if (account == NULL || !account->is_member)
        return take(&budget->nonmembers, budget->bits_per_second / NONMEMBERS_PART, bytes, now_ns);
    uint32_t parts = active_members > MEMBERS_MIN ? active_members : MEMBERS_MIN;
    return take(&account->bucket, budget->bits_per_second / parts, bytes, now_ns);
}
