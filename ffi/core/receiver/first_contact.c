#include "core/receiver/first_contact.h"

static const int64_t INTERVAL_MIN_NS = 100000000;
static const int64_t INTERVAL_MAX_NS = 10000000000;
static const int64_t NS_PER_S = 1000000000;
static const um_ip OTHERS = {0};

/* An entry that was never contacted is replaced before any other, so refused attempts forget nothing. */
static um_contact *find(um_contact *table, um_ip target, um_ip advertiser)
{
    um_contact *oldest = &table[0];
    for (uint32_t i = 0; i < UM_CONTACTS_MAX; i++) {
        um_contact *contact = &table[i];
        if (um_ip_equal(contact->target, target) && um_ip_equal(contact->advertiser, advertiser))
            return contact;
        if (contact->contacted_ns < oldest->contacted_ns)
            oldest = contact;
    }
    *oldest = (um_contact){.target = target, .advertiser = advertiser};
    return oldest;
}

static void earn(um_contact_budget *budget, int64_t per_s, int64_t now_ns)
{
    int64_t earn_ns = NS_PER_S / per_s;
    if (budget->spent == 0 || now_ns < budget->earned_ns) {
        budget->earned_ns = now_ns;
        return;
    }
    int64_t earned = (now_ns - budget->earned_ns) / earn_ns;
    budget->earned_ns += earned * earn_ns;
    budget->spent -= earned < budget->spent ? (uint32_t)earned : budget->spent;
}

/* A budget of which less is spent is replaced first: little is forgotten. */
static um_contact_budget *find_budget(um_first_contacts *contacts, um_ip advertiser)
{
    um_contact_budget *least = &contacts->advertisers[0];
    for (uint32_t i = 0; i < UM_CONTACTS_MAX; i++) {
        um_contact_budget *budget = &contacts->advertisers[i];
        if (um_ip_equal(budget->advertiser, advertiser))
            return budget;
        if (budget->spent < least->spent || (budget->spent == least->spent && budget->earned_ns < least->earned_ns))
            least = budget;
    }
    *least = (um_contact_budget){.advertiser = advertiser};
    return least;
}

static void return_charges(um_contact_budget *budget, uint32_t charged)
{
    budget->spent -= charged < budget->spent ? charged : budget->spent;
}

static void count(um_contact *contact, uint32_t free_attempts, int64_t now_ns)
{
    contact->contacted_ns = now_ns;
    if (++contact->attempts < free_attempts)
        return;
    uint32_t beyond = contact->attempts - free_attempts;
    contact->next_ns = now_ns + (beyond < 7 ? INTERVAL_MIN_NS << beyond : INTERVAL_MAX_NS);
}

static void count_accepted(um_contact *contact, uint32_t free_attempts)
{
    contact->attempts -= contact->attempts > 1;
    if (contact->attempts < free_attempts)
        contact->next_ns = 0;
}

int64_t um_first_contact_wait_ns(um_first_contacts *contacts, um_ip target, um_ip advertiser, int64_t now_ns)
{
    um_contact *others = find(contacts->targets, target, OTHERS);
    if (others->has_answered)
        return 0;
    bool is_own = um_ip_equal(target, advertiser);
    um_contact *pair = find(contacts->pairs, target, advertiser);
    int64_t next_ns = is_own || pair->next_ns > others->next_ns ? pair->next_ns : others->next_ns;
    if (now_ns < next_ns)
        return next_ns - now_ns < INTERVAL_MIN_NS ? next_ns - now_ns : INTERVAL_MIN_NS;
    um_contact_budget *budget = find_budget(contacts, advertiser);
    earn(budget, UM_CONTACT_BUDGET_PER_S, now_ns);
    earn(&contacts->all, UM_CONTACT_ALL_PER_S, now_ns);
    bool is_charged = (is_own ? pair : others)->attempts > 0;
    if (is_charged && (budget->spent >= UM_CONTACT_BUDGET_MAX || contacts->all.spent >= UM_CONTACT_ALL_MAX))
        return NS_PER_S / UM_CONTACT_BUDGET_PER_S;
    budget->spent += is_charged;
    contacts->all.spent += is_charged;
    pair->charged += is_charged;
    count(pair, UM_CONTACT_FREE_ATTEMPTS, now_ns);
    if (!is_own)
        count(others, UM_CONTACT_TARGET_FREE_ATTEMPTS, now_ns);
    return 0;
}

void um_first_contact_accepted(um_first_contacts *contacts, um_ip target, um_ip advertiser)
{
    count_accepted(find(contacts->pairs, target, advertiser), UM_CONTACT_FREE_ATTEMPTS);
    if (!um_ip_equal(target, advertiser))
        count_accepted(find(contacts->targets, target, OTHERS), UM_CONTACT_TARGET_FREE_ATTEMPTS);
}

void um_first_contact_answered(um_first_contacts *contacts, um_ip target, int64_t now_ns)
{
    um_contact *others = find(contacts->targets, target, OTHERS);
    others->has_answered = true;
    others->contacted_ns = now_ns;
    for (uint32_t i = 0; i < UM_CONTACTS_MAX; i++) {
        um_contact *pair = &contacts->pairs[i];
        if (!um_ip_equal(pair->target, target))
            continue;
        return_charges(find_budget(contacts, pair->advertiser), pair->charged);
        return_charges(&contacts->all, pair->charged);
        *pair = (um_contact){0};
    }
}
