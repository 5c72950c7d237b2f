#include "core/receiver/session_claims.h"

#include "core/receiver/gaps.h"

enum {
    REACH_MAX = 256,     /* about the capacity of one NAK datagram */
    LOSS_MAP_PARTS = 4,  /* the reach is at most this fraction of the loss map */
    AHEAD_MAX = 1 << 30, /* no source can have a lead further ahead */
    QUIET_MAX_NS = 1000000,
    FAR_NAKS = 4, /* NAKs after which a lead beyond the reach may be replaced by another */
};

static uint32_t reach(const um_receiver_session *session)
{
    uint32_t part = session->losses.capacity / LOSS_MAP_PARTS;
    return part < REACH_MAX ? part : REACH_MAX;
}

static void add_run(um_receiver_session *session, uint32_t from, uint32_t end, int64_t now_ns)
{
    if (from != end)
        um_gaps_add(session, from, end - 1, now_ns);
}

/* Claims are within the reach of next_sqn, except far_sqn. */
void um_receiver_session_claims_add_gap(um_receiver_session *session, uint32_t last, int64_t now_ns)
{
    const um_receiver_session_claims *claims = &session->claims;
    uint32_t first = session->next_sqn, from = first, end = last + 1;
    for (uint32_t sqn = first; claims->has_any && sqn != end && sqn != first + REACH_MAX; sqn++) {
        if (um_loss_map_find(&session->losses, sqn) == NULL)
            continue;
        add_run(session, from, sqn, now_ns);
        from = sqn + 1;
    }
    bool is_split = claims->has_any && claims->has_far && claims->far_sqn - from < end - from &&
                    um_loss_map_find(&session->losses, claims->far_sqn) != NULL;
    if (is_split) {
        add_run(session, from, claims->far_sqn, now_ns);
        from = claims->far_sqn + 1;
    }
    add_run(session, from, end, now_ns);
}

/* A lead claimed beyond the reach is kept until it has been NAKed FAR_NAKS times. */
static bool can_claim_far(um_receiver_session *session)
{
    um_receiver_session_claims *claims = &session->claims;
    um_loss *loss = claims->has_far ? um_loss_map_find(&session->losses, claims->far_sqn) : NULL;
    if (loss == NULL)
        return true;
    if (loss->naks_sent < FAR_NAKS)
        return false;
    um_loss_map_remove(&session->losses, loss);
    return true;
}

static void claim(um_receiver_session *session, int64_t now_ns)
{
    um_receiver_session_claims *claims = &session->claims;
    bool is_far = claims->lead - session->next_sqn >= reach(session);
    claims->is_pending = false;
    if (um_serial_before(claims->lead, session->next_sqn)) /* it has arrived meanwhile */
        return;
    if (session->losses.capacity - session->losses.count < reach(session) || (is_far && !can_claim_far(session)))
        return; /* the next session message repeats it */
    if (!is_far)
        um_receiver_session_claims_add_gap(session, claims->lead, now_ns);
    else if (um_loss_map_find(&session->losses, claims->lead) == NULL)
        add_run(session, claims->lead, claims->lead + 1, now_ns);
    if (is_far) {
        claims->has_far = true;
        claims->far_sqn = claims->lead;
    }
    claims->has_claimed = true;
    claims->claimed_lead = claims->lead;
    if (!claims->has_any || um_serial_before(claims->end, claims->lead + 1))
        claims->end = claims->lead + 1;
    claims->has_any = true;
}

/* Returns how long after the last data no claim is made, because a running stream reveals its own losses: this
 * receiver's round trip, or QUIET_MAX_NS if none has been measured or timers are fixed. */
static int64_t quiet_ns(const um_receiver_session *session)
{
    int64_t crossing_ns =
        session->timing.adaptive & UM_ADAPTIVE_INITIAL ? um_recovery_timing_crossing_ns(&session->timing) : 0;
    return crossing_ns > 0 ? um_between_ns(crossing_ns, UM_RECOVERY_FLOOR_NS, QUIET_MAX_NS) : QUIET_MAX_NS;
}

int64_t um_receiver_session_claims_tick(um_receiver_session *session, int64_t now_ns)
{
    const um_receiver_session_claims *claims = &session->claims;
    if (!claims->is_pending)
        return UM_NEVER_NS;
    int64_t due_ns = claims->last_data_ns + quiet_ns(session);
    if (now_ns < due_ns)
        return due_ns;
    claim(session, now_ns);
    return UM_NEVER_NS;
}

bool um_receiver_session_claims_on_lead(um_receiver_session *session, uint32_t lead, int64_t now_ns)
{
    um_receiver_session_claims *claims = &session->claims;
    int32_t ahead = um_serial_diff(lead, session->next_sqn);
    if (ahead > AHEAD_MAX)
        return false;
    claims->has_lead = true;
    claims->lead = lead;
    claims->is_pending = ahead >= 0 && !(claims->has_claimed && claims->claimed_lead == lead);
    claims->has_claimed &= ahead >= 0;
    um_receiver_session_claims_tick(session, now_ns);
    return true;
}

void um_receiver_session_claims_on_data(um_receiver_session *session, uint32_t sqn, bool retransmission, int64_t now_ns)
{
    um_receiver_session_claims *claims = &session->claims;
    um_loss *loss = um_loss_map_find(&session->losses, sqn);
    if (loss != NULL)
        um_gaps_on_recovered(session, loss, retransmission, now_ns);
    claims->has_failed = claims->has_claimed = false;
    if (um_serial_before(sqn + 1, claims->end) && session->losses.count > 0)
        return;
    claims->has_any = claims->has_far = false;
}

uint32_t um_receiver_session_claims_position(const um_receiver_session *session)
{
    const um_receiver_session_claims *claims = &session->claims;
    if (!claims->has_failed || !claims->has_lead)
        return session->next_sqn;
    uint32_t end = um_serial_before(claims->lead + 1, claims->failed_end) ? claims->lead + 1 : claims->failed_end;
    return um_serial_before(session->next_sqn, end) ? end : session->next_sqn;
}
