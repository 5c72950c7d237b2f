/* Attempts to reach addresses that never answered: their number per address and in all, and what an answer changes. */
#include "core/receiver/first_contact.h"
#include "support.h"

/* Asks for each of `count` addresses every `step_ns`, as sessions do; returns the attempts made until `until_ns`. */
static uint32_t attempts_until(um_first_contacts *contacts, uint32_t ip, uint32_t count, int64_t step_ns,
                               int64_t until_ns)
{
    uint32_t made = 0;
    for (int64_t now_ns = 1; now_ns < until_ns; now_ns += step_ns)
        for (uint32_t i = 0; i < count; i++)
            made += um_first_contact_wait_ns(contacts, um_ip_of_v4(ip + i), now_ns) == 0;
    return made;
}

TEST("", "an address that never answers gets a few attempts, then intervals that double to ten seconds")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    uint32_t in_a_second = attempts_until(contacts, 7, 1, NS_PER_MS, NS_PER_S);
    CHECK_EQ(in_a_second, UM_CONTACT_FREE_ATTEMPTS + 3); /* after 100, 300 and 700 ms */
    CHECK(attempts_until(contacts, 7, 1, 10 * NS_PER_MS, 60 * (int64_t)NS_PER_S) <= 8);
    free(contacts);
}

TEST("", "all addresses together share a budget, which answers give back")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    uint32_t made = attempts_until(contacts, 1000, 500, 100 * NS_PER_MS, 10 * (int64_t)NS_PER_S);
    CHECK(made >= 500 + UM_CONTACT_BUDGET_MAX &&
          made <= 500 + UM_CONTACT_BUDGET_MAX + 10 * UM_CONTACT_BUDGET_PER_S + 1);
    CHECK_EQ(um_first_contact_wait_ns(contacts, um_ip_of_v4(7), 10 * (int64_t)NS_PER_S),
             0); /* an honest newcomer is not delayed */
    um_first_contacts *honest = zeroed(sizeof *honest);
    for (uint32_t ip = 1; ip <= 10 * UM_CONTACTS_MAX; ip++) {
        CHECK_EQ(um_first_contact_wait_ns(honest, um_ip_of_v4(ip), 1), 0);
        um_first_contact_answered(honest, um_ip_of_v4(ip), 1);
        CHECK_EQ(honest->spent, 0);
    }
    free(honest);
    free(contacts);
}

TEST("", "an address that answers is not limited, and one that accepts connections only by the budget")
{
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    for (uint32_t i = 0; i <= UM_CONTACT_BUDGET_MAX; i++) {
        CHECK_EQ(um_first_contact_wait_ns(contacts, um_ip_of_v4(7), 1), 0);
        um_first_contact_accepted(contacts, um_ip_of_v4(7));
    }
    CHECK(um_first_contact_wait_ns(contacts, um_ip_of_v4(7), 1) > 0);
    um_first_contact_answered(contacts, um_ip_of_v4(7), 1);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(um_first_contact_wait_ns(contacts, um_ip_of_v4(7), 1), 0);
    free(contacts);
}

CHECK_MAIN
