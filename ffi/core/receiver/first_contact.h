/* Datagrams and connections to addresses that never sent anything. Advertisements name them, and may be forged to make
 * every receiver of a topic send to a victim. An attempt is permitted by all of these:
 *
 *     target and advertiser    a few attempts freely, then one per interval that doubles
 *     target                   the same with more attempts, for all advertisers but the target itself: their number is
 *                              for an attacker to choose
 *     advertiser               a budget, so that an advertiser of many targets delays no other advertiser
 *     all                      a larger budget, which one advertiser cannot use up
 *
 * The first attempt to a target, and the first one that the target advertises itself, are outside the budgets, so that
 * forged addresses delay no honest newcomer. An address that answers is free of all limits from then on.
 *
 * Threads: the context lock. Memory: the node's. Complexity: linear in UM_CONTACTS_MAX, and only for sessions that have
 * received nothing. Errors: none.
 */
#ifndef UM_CORE_FIRST_CONTACT_H
#define UM_CORE_FIRST_CONTACT_H

#include "core/foundation/address.h"

enum {
    UM_CONTACTS_MAX = 1024,       /* entries of each table, more than sessions; the one used longest ago is evicted */
    UM_CONTACT_FREE_ATTEMPTS = 8, /* per target and advertiser, before the intervals double */
    UM_CONTACT_TARGET_FREE_ATTEMPTS = 32, /* per target, of advertisers with other addresses */
    UM_CONTACT_BUDGET_MAX = 128,          /* attempts of an advertiser that have had no answer */
    UM_CONTACT_BUDGET_PER_S = 16,         /* attempts that this budget gains per second */
    UM_CONTACT_ALL_MAX = 512,             /* the same of all advertisers together */
    UM_CONTACT_ALL_PER_S = 64,
};

/* Attempts to a target that one advertiser, or all others than the target itself, caused. */
typedef struct um_contact {
    um_ip target;     /* unset: free */
    um_ip advertiser; /* unset: all others, or unknown */
    uint32_t attempts;
    uint32_t charged;  /* attempts that count for the budgets */
    bool has_answered; /* in `targets` */
    int64_t contacted_ns;
    int64_t next_ns; /* no attempt before */
} um_contact;

/* Attempts without an answer that count for a budget. */
typedef struct um_contact_budget {
    um_ip advertiser; /* unset: all, unknown or free */
    uint32_t spent;
    int64_t earned_ns;
} um_contact_budget;

typedef struct um_first_contacts {
    um_contact targets[UM_CONTACTS_MAX];
    um_contact pairs[UM_CONTACTS_MAX];
    um_contact_budget advertisers[UM_CONTACTS_MAX];
    um_contact_budget all;
} um_first_contacts;

/* Counts an attempt to this address, which the advertiser named (unset: unknown). Returns 0 if it may be made now, else
 * for how long to wait before asking again. */
int64_t um_first_contact_wait_ns(um_first_contacts *contacts, um_ip target, um_ip advertiser, int64_t now_ns);
/* Notes that the address accepted a connection, which is no answer yet: the attempt counts for the budgets only. */
void um_first_contact_accepted(um_first_contacts *contacts, um_ip target, um_ip advertiser);
/* Notes that the address has answered. */
void um_first_contact_answered(um_first_contacts *contacts, um_ip target, int64_t now_ns);

#endif
