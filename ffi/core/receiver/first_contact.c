#include "core/receiver/first_contact.h"

static const int64_t INTERVAL_MIN_NS = 100000000;
static const int64_t INTERVAL_MAX_NS = 10000000000;
static const int64_t EARN_NS = 1000000000 / UM_CONTACT_BUDGET_PER_S;

static um_contact *find(um_first_contacts *contacts, um_ip ip)
{
    um_contact *oldest = &contacts->table[0];
    for (uint32_t i = 0; i < UM_CONTACTS_MAX; i++) {
        um_contact *contact = &contacts->table[i];
        if (um_ip_equal(contact->ip, ip))
            return contact;
        if (!um_ip_is_set(oldest->ip))
            continue;
        if (!um_ip_is_set(contact->ip) || contact->contacted_ns < oldest->contacted_ns)
            oldest = contact;
    }
    *oldest = (um_contact){.ip = ip};
    return oldest;
}

static void earn(um_first_contacts *contacts, int64_t now_ns)
{
    if (contacts->spent == 0 || now_ns < contacts->earned_ns) {
        contacts->earned_ns = now_ns;
        return;
    }
    int64_t earned = (now_ns - contacts->earned_ns) / EARN_NS;
    contacts->earned_ns += earned * EARN_NS;
    contacts->spent -= earned < contacts->spent ? (uint32_t)earned : contacts->spent;
}

static int64_t interval_ns(const um_contact *contact)
{
    uint32_t beyond = contact->attempts - UM_CONTACT_FREE_ATTEMPTS;
    return beyond < 7 ? INTERVAL_MIN_NS << beyond : INTERVAL_MAX_NS;
}

int64_t um_first_contact_wait_ns(um_first_contacts *contacts, um_ip ip, int64_t now_ns)
{
    um_contact *contact = find(contacts, ip);
    if (contact->has_answered)
        return 0;
    if (now_ns < contact->next_ns)
        return contact->next_ns - now_ns < INTERVAL_MIN_NS ? contact->next_ns - now_ns : INTERVAL_MIN_NS;
    earn(contacts, now_ns);
    if (contact->attempts > 0 && contacts->spent >= UM_CONTACT_BUDGET_MAX)
        return EARN_NS;
    contacts->spent += contact->attempts++ > 0;
    contact->contacted_ns = now_ns;
    if (contact->attempts >= UM_CONTACT_FREE_ATTEMPTS)
        contact->next_ns = now_ns + interval_ns(contact);
    return 0;
}

void um_first_contact_accepted(um_first_contacts *contacts, um_ip ip)
{
    um_contact *contact = find(contacts, ip);
    contact->attempts -= contact->attempts > 1;
    if (contact->attempts < UM_CONTACT_FREE_ATTEMPTS)
        contact->next_ns = 0;
}

void um_first_contact_answered(um_first_contacts *contacts, um_ip ip, int64_t now_ns)
{
    um_contact *contact = find(contacts, ip);
    uint32_t charged = contact->has_answered || contact->attempts == 0 ? 0 : contact->attempts - 1;
    contacts->spent -= charged < contacts->spent ? charged : contacts->spent;
    contact->has_answered = true;
    contact->contacted_ns = now_ns;
}
