/* Datagrams and connections to addresses that never sent anything. Advertisements name them, and may be forged to make
 * every receiver of a topic send to a victim. Each address gets a few attempts freely, then one per interval that
 * doubles. All addresses together share a budget, except for the first attempt of each, so that forged addresses delay
 * no honest newcomer. An address that answers is free of both from then on.
 *
 * Threads: the context lock. Memory: the node's. Complexity: linear in UM_CONTACTS_MAX, and only for sessions that have
 * received nothing. Errors: none.
 */
#ifndef UM_CORE_FIRST_CONTACT_H
#define UM_CORE_FIRST_CONTACT_H

#include "core/foundation/address.h"

enum {
    UM_CONTACTS_MAX = 1024, /* addresses remembered, more than sessions; the one contacted longest ago is evicted */
    UM_CONTACT_FREE_ATTEMPTS = 8, /* per address, before the intervals double */
    UM_CONTACT_BUDGET_MAX = 128,  /* attempts of all addresses together that have had no answer */
    UM_CONTACT_BUDGET_PER_S = 16, /* attempts that the budget gains per second */
};

typedef struct um_contact {
    um_ip ip; /* unset: free */
    uint32_t attempts;
    bool has_answered;
    int64_t contacted_ns;
    int64_t next_ns; /* no attempt before */
} um_contact;

typedef struct um_first_contacts {
    um_contact table[UM_CONTACTS_MAX];
    uint32_t spent; /* attempts without an answer that count for the budget */
    int64_t earned_ns;
} um_first_contacts;

/* Counts an attempt to this address. Returns 0 if it may be made now, else for how long to wait before asking again. */
int64_t um_first_contact_wait_ns(um_first_contacts *contacts, um_ip ip, int64_t now_ns);
/* Notes that the address accepted a connection, which is no answer yet: the attempt counts for the budget only. */
void um_first_contact_accepted(um_first_contacts *contacts, um_ip ip);
/* Notes that the address has answered. */
void um_first_contact_answered(um_first_contacts *contacts, um_ip ip, int64_t now_ns);

#endif
