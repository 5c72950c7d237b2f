/* Attempts to reach addresses that never answered: their number per address, per advertiser and in all, and what an
 * answer changes. */
#include "core/receiver/first_contact.h"
#include "support.h"

enum { VICTIM = 7, LIAR = 0x0a000001 };

static int64_t wait_ns(um_first_contacts *contacts, uint32_t target, uint32_t advertiser, int64_t now_ns)
{
    return um_first_contact_wait_ns(contacts, um_ip_of_v4(target), um_ip_of_v4(advertiser), now_ns);
}

/* Asks for each of `count` addresses every `step_ns`, as sessions do, and as one advertiser, or as a new one each time
 * with 0; returns the attempts made until `until_ns`. */
static uint32_t attempts_until(um_first_contacts *contacts, uint32_t target, uint32_t count, uint32_t advertiser,
                               int64_t step_ns, int64_t until_ns)
{
    static uint32_t forged = 1u << 24;
    uint32_t made = 0;
    for (int64_t now_ns = 1; now_ns < until_ns; now_ns += step_ns)
        for (uint32_t i = 0; i < count; i++)
            made += wait_ns(contacts, target + i, advertiser != 0 ? advertiser : forged++, now_ns) == 0;
    return made;
}

TEST("", "an address that never answers gets a few attempts, then intervals that double to ten seconds")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    uint32_t in_a_second = attempts_until(contacts, VICTIM, 1, LIAR, NS_PER_MS, NS_PER_S);
    CHECK_EQ(in_a_second, UM_CONTACT_FREE_ATTEMPTS + 3); /* after 100, 300 and 700 ms */
    CHECK(attempts_until(contacts, VICTIM, 1, LIAR, 10 * NS_PER_MS, 60 * (int64_t)NS_PER_S) <= 8);
    free(contacts);
}

TEST("", "no interval is longer than ten seconds")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    int64_t last_ns = 0, longest_ns = 0;
    for (int64_t now_ns = 0; now_ns < 120 * (int64_t)NS_PER_S; now_ns += 10 * NS_PER_MS) {
        if (wait_ns(contacts, VICTIM, LIAR, now_ns) != 0)
            continue;
        longest_ns = now_ns - last_ns > longest_ns ? now_ns - last_ns : longest_ns;
        last_ns = now_ns;
    }
    CHECK_EQ(longest_ns, 10 * (int64_t)NS_PER_S);
    free(contacts);
}

TEST("", "forged advertisers, each a new one, get a target more attempts, then intervals that double")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    CHECK_EQ(attempts_until(contacts, VICTIM, 1, 0, NS_PER_MS, NS_PER_S), UM_CONTACT_TARGET_FREE_ATTEMPTS + 3);
    CHECK(attempts_until(contacts, VICTIM, 1, 0, 10 * NS_PER_MS, 60 * (int64_t)NS_PER_S) <= 8);
    free(contacts);
}

TEST("", "lies about a source leave it its own attempts, whether it or another daemon advertises it")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    attempts_until(contacts, VICTIM, 1, LIAR, NS_PER_MS, NS_PER_S);
    for (uint32_t i = 0; i < UM_CONTACT_FREE_ATTEMPTS; i++)
        CHECK_EQ(wait_ns(contacts, VICTIM, LIAR + 1, NS_PER_S), 0);
    attempts_until(contacts, VICTIM, 1, 0, NS_PER_MS, NS_PER_S);
    CHECK(wait_ns(contacts, VICTIM, LIAR + 2, NS_PER_S) > 0);
    for (uint32_t i = 0; i < UM_CONTACT_FREE_ATTEMPTS; i++)
        CHECK_EQ(wait_ns(contacts, VICTIM, VICTIM, NS_PER_S), 0);
    CHECK(wait_ns(contacts, VICTIM, VICTIM, NS_PER_S) > 0);
    free(contacts);
}

TEST("", "the targets of an advertiser share a budget, which answers return and others do not use")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    uint32_t made = attempts_until(contacts, 1000, 500, LIAR, 100 * NS_PER_MS, 10 * (int64_t)NS_PER_S);
    CHECK(made >= 500 + UM_CONTACT_BUDGET_MAX &&
          made <= 500 + UM_CONTACT_BUDGET_MAX + 10 * UM_CONTACT_BUDGET_PER_S + 1);
    for (uint32_t i = 0; i < UM_CONTACT_FREE_ATTEMPTS; i++) /* an honest newcomer is not delayed */
        CHECK_EQ(wait_ns(contacts, VICTIM, VICTIM, 10 * (int64_t)NS_PER_S), 0);
    um_first_contacts *honest = zeroed(sizeof *honest);
    for (uint32_t ip = 1; ip <= 10 * UM_CONTACTS_MAX; ip++) {
        CHECK_EQ(wait_ns(honest, ip, LIAR, 1), 0);
        CHECK_EQ(wait_ns(honest, ip, LIAR, 1), 0);
        CHECK_EQ(honest->all.spent, 1);
        um_first_contact_answered(honest, um_ip_of_v4(ip), 1);
        CHECK_EQ(honest->all.spent, 0);
    }
    free(honest);
    free(contacts);
}

TEST("", "all advertisers together share a larger budget")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    uint32_t made = attempts_until(contacts, 1000, 500, 0, 100 * NS_PER_MS, 10 * (int64_t)NS_PER_S);
    CHECK(made >= 500 + UM_CONTACT_ALL_MAX && made <= 500 + UM_CONTACT_ALL_MAX + 10 * UM_CONTACT_ALL_PER_S + 1);
    CHECK_EQ(wait_ns(contacts, VICTIM, VICTIM, 10 * (int64_t)NS_PER_S), 0);
    CHECK_EQ(wait_ns(contacts, 1000, 1000, 10 * (int64_t)NS_PER_S),
             0); /* lies named it before: its own first is free */
    free(contacts);
}

TEST("", "a budget grows at its rate, even if it is used at intervals that are no multiple of its step")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    CHECK_EQ(attempts_until(contacts, 1000, 500, LIAR, 1, 3), 500 + UM_CONTACT_BUDGET_MAX);
    int64_t step_ns = 3 * (int64_t)NS_PER_S / UM_CONTACT_BUDGET_PER_S / 2, until_ns = 6 * (int64_t)NS_PER_S;
    uint32_t made = 0;
    for (int64_t now_ns = step_ns; now_ns <= until_ns; now_ns += step_ns)
        for (uint32_t i = 0; i < 500; i++)
            made += wait_ns(contacts, 1000 + i, LIAR, now_ns) == 0;
    CHECK(made >= 6 * UM_CONTACT_BUDGET_PER_S - 1 && made <= 6 * UM_CONTACT_BUDGET_PER_S);
    free(contacts);
}

TEST("", "an address that answers is not limited, and one that accepts connections only by the budgets")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    for (uint32_t i = 0; i <= UM_CONTACT_BUDGET_MAX; i++) {
        CHECK_EQ(wait_ns(contacts, VICTIM, LIAR, 1), 0);
        um_first_contact_accepted(contacts, um_ip_of_v4(VICTIM), um_ip_of_v4(LIAR));
    }
    CHECK(wait_ns(contacts, VICTIM, LIAR, 1) > 0);
    um_first_contact_answered(contacts, um_ip_of_v4(VICTIM), 1);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(wait_ns(contacts, VICTIM, LIAR, 1), 0);
    free(contacts);
}

CHECK_MAIN
