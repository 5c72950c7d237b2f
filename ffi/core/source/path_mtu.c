#include "core/source/path_mtu.h"

enum {
    CHECK_ATTEMPTS = 3,
    NARROW_ATTEMPTS = 2,
    NARROW_STEPS = 4,
    NARROW_SIZES = 8,
    GAP_BYTES = 16,   /* the search ends when sizes are this close together */
    SUSPICION = 3,    /* repeated NAKs of long datagrams, with none of short ones between them */
    JUDGED_AFTER = 2, /* attempts after which a report of less than the target is believed */
    IDLE_INTERVALS = 3,
};
static const int64_t NEWCOMER_PAUSE_NS = 100000000;
static const int64_t RETRY_PAUSE_NS = 1000000000;
static const int64_t TRUST_MAX_NS = 60000000000;
static const int64_t RAISE_MIN_NS = 5000000000;
static const int64_t RAISE_MAX_NS = 600000000000; /* PMTU_RAISE_TIMER of RFC 8899 */
static const int64_t UNKNOWN_INTERVAL_NS = 10000000000;

/* MTUs in use: IPv4's minimum, IPv6's minimum, common tunnels, Ethernet, FDDI, jumbo frames. */
static const uint16_t COMMON_MTUS[] = {576, 1280, 1400, 1450, 1476, 1492, 1500, 4352, 9000};
enum { COMMON_COUNT = sizeof COMMON_MTUS / sizeof COMMON_MTUS[0] };
_Static_assert((int)COMMON_COUNT + 2 <= (int)UM_PATH_SIZES_MAX, "the floor and the target are added");
_Static_assert((int)NARROW_SIZES <= (int)UM_PATH_SIZES_MAX, "one attempt");

void um_path_mtu_init(um_path_mtu *path, uint32_t ceiling_bytes, uint32_t floor_bytes, uint32_t header_bytes,
                      uint64_t random_seed)
{
    *path = (um_path_mtu){.floor_bytes = floor_bytes,
                          .header_bytes = header_bytes,
                          .ceiling_bytes = ceiling_bytes,
                          .bytes = ceiling_bytes,
                          .random = {random_seed},
                          .due_ns = UM_NEVER_NS,
                          .newcomers_from_ns = INT64_MIN,
                          .suspicion_from_ns = INT64_MIN,
                          .trust_interval_ns = RETRY_PAUSE_NS,
                          .raise_due_ns = UM_NEVER_NS,
                          .raise_interval_ns = RAISE_MIN_NS};
}

/* The floor, or what the interface carries if that is less. */
static uint32_t floor_bytes(const um_path_mtu *path)
{
    return path->floor_bytes < path->ceiling_bytes ? path->floor_bytes : path->ceiling_bytes;
}

/* ---- receivers ---- */

static bool has_reported(const um_path_mtu *path, const um_path_receiver *receiver)
{
    return receiver->round != 0 && receiver->round == path->round;
}

static bool has_confirmed(const um_path_mtu *path, const um_path_receiver *receiver)
{
    return has_reported(path, receiver) && receiver->bytes >= path->target_bytes;
}

static bool all_have_confirmed(const um_path_mtu *path)
{
    for (uint32_t i = 0; i < path->receiver_count; i++)
        if (!path->receivers[i].is_mute && !has_confirmed(path, &path->receivers[i]))
            return false;
    return true;
}

static void expire(um_path_mtu *path, int64_t now_ns)
{
    for (uint32_t i = path->receiver_count; i-- > 0;)
        if (path->receivers[i].expires_ns <= now_ns)
            path->receivers[i] = path->receivers[--path->receiver_count];
}

static um_path_receiver *find(um_path_mtu *path, uint64_t id)
{
    for (uint32_t i = 0; i < path->receiver_count; i++)
        if (path->receivers[i].id == id)
            return &path->receivers[i];
    return NULL;
}

static bool counts_any(const um_path_mtu *path)
{
    for (uint32_t i = 0; i < path->receiver_count; i++)
        if (!path->receivers[i].is_mute)
            return true;
    return false;
}

bool um_path_mtu_has_reports(const um_path_mtu *path)
{
    for (uint32_t i = 0; i < path->receiver_count; i++)
        if (path->receivers[i].round != 0)
            return true;
    return false;
}

/* The size that every receiver has reported in this round, at most the target; 0: none has reported any. Receivers
 * without enough attempts are left for the next check. */
static uint32_t reported_by_all(um_path_mtu *path)
{
    uint32_t least = 0;
    for (uint32_t i = 0; i < path->receiver_count; i++) {
        um_path_receiver *receiver = &path->receivers[i];
        bool is_judged = receiver->attempts >= JUDGED_AFTER;
        if (has_reported(path, receiver) && receiver->bytes < floor_bytes(path) && is_judged)
            receiver->is_mute = true;
        if (receiver->round == 0 && receiver->attempts >= CHECK_ATTEMPTS)
            receiver->is_mute = true;
        if (receiver->is_mute)
            continue;
        if (!has_reported(path, receiver) || (!has_confirmed(path, receiver) && !is_judged)) {
            path->has_newcomer = true;
            continue;
        }
        if (least == 0 || receiver->bytes < least) {
            least = receiver->bytes;
            path->limited_by = receiver->address;
        }
    }
    return least < path->target_bytes ? least : path->target_bytes;
}

/* ---- transitions ---- */

static int64_t resting_due_ns(const um_path_mtu *path)
{
    int64_t due_ns = path->bytes < path->ceiling_bytes ? path->raise_due_ns : UM_NEVER_NS;
    if (path->has_newcomer)
        due_ns = um_earliest_ns(due_ns, path->newcomers_from_ns);
    if (path->is_suspicious)
        due_ns = um_earliest_ns(due_ns, path->suspicion_from_ns);
    return due_ns;
}

static uint16_t other_round(um_path_mtu *path)
{
    uint16_t round = (uint16_t)(1 + um_random_below(&path->random, UINT16_MAX));
    return round != path->round ? round : round == 1 ? 2 : 1;
}

static void begin(um_path_mtu *path, uint32_t target_bytes, bool is_new_round)
{
    if (is_new_round || path->round == 0)
        path->round = other_round(path);
    path->state = UM_PATH_CHECKING;
    path->target_bytes = target_bytes;
    path->begun_bytes = path->bytes;
    path->attempt = 0;
    path->has_newcomer = false;
    for (uint32_t i = 0; i < path->receiver_count; i++)
        path->receivers[i].attempts = 0;
}

/* Begins the check that is due. Returns false if none is, or nobody would answer. */
static bool begin_due(um_path_mtu *path, int64_t now_ns)
{
    expire(path, now_ns);
    if (!counts_any(path)) {
        path->bytes = path->ceiling_bytes;
        path->has_newcomer = path->is_suspicious = false;
        path->due_ns = UM_NEVER_NS;
        return false;
    }
    if (path->bytes < path->ceiling_bytes && path->raise_due_ns <= now_ns)
        begin(path, path->ceiling_bytes, true);
    else if (path->is_suspicious && path->suspicion_from_ns <= now_ns)
        begin(path, path->bytes, true);
    else if (path->has_newcomer && path->newcomers_from_ns <= now_ns)
        begin(path, path->bytes, false);
    else
        path->due_ns = resting_due_ns(path);
    return path->state == UM_PATH_CHECKING;
}

static void rest(um_path_mtu *path, int64_t now_ns)
{
    bool has_changed = path->bytes != path->begun_bytes;
    bool was_raise = path->target_bytes > path->begun_bytes;
    path->state = UM_PATH_RESTING;
    if (has_changed)
        path->raise_interval_ns = RAISE_MIN_NS;
    else if (was_raise)
        path->raise_interval_ns = um_earliest_ns(2 * path->raise_interval_ns, RAISE_MAX_NS);
    bool was_wrong = path->is_suspicious && !has_changed;
    path->suspicion_from_ns = now_ns + (was_wrong ? path->trust_interval_ns : NEWCOMER_PAUSE_NS);
    if (has_changed)
        path->trust_interval_ns = RETRY_PAUSE_NS;
    else if (was_wrong)
        path->trust_interval_ns = um_earliest_ns(2 * path->trust_interval_ns, TRUST_MAX_NS);
    if (has_changed || was_raise)
        path->raise_due_ns = now_ns + path->raise_interval_ns;
    path->is_suspicious = false;
    path->long_repeats = 0;
    path->newcomers_from_ns = now_ns + (path->has_newcomer ? RETRY_PAUSE_NS : NEWCOMER_PAUSE_NS);
    path->due_ns = resting_due_ns(path);
}

/* Returns the smallest size of the last probes above `bytes`, or `otherwise`. */
static uint32_t next_probed(const um_path_mtu *path, uint32_t bytes, uint32_t otherwise)
{
    for (uint32_t i = 0; i < path->probes.count; i++)
        if (path->probes.sizes[i] > bytes)
            return path->probes.sizes[i];
    return otherwise;
}

/* Takes the size that every receiver reports, after the last attempt of a step. Returns false if nothing is left to
 * probe. */
static bool conclude(um_path_mtu *path)
{
    uint32_t otherwise = path->state == UM_PATH_CHECKING ? path->target_bytes : path->failing_bytes;
    uint32_t least = reported_by_all(path);
    if (least == 0)
        return false;
    if (least < path->bytes || !path->has_newcomer)
        path->bytes = least > floor_bytes(path) ? least : floor_bytes(path);
    path->passing_bytes = least;
    path->failing_bytes = next_probed(path, least, otherwise);
    path->attempt = 0;
    path->step = path->state == UM_PATH_CHECKING ? 0 : path->step + 1;
    path->state = UM_PATH_NARROWING;
    return least >= floor_bytes(path) && path->failing_bytes > least + GAP_BYTES && path->step < NARROW_STEPS;
}

/* ---- probes ---- */

static void add_size(um_path_probes *probes, uint32_t bytes)
{
    probes->sizes[probes->count++] = (uint16_t)bytes;
}

static void choose_sizes(um_path_mtu *path)
{
    um_path_probes *probes = &path->probes;
    probes->count = 0;
    probes->wants_answer = path->attempt > 1;
    if (path->state == UM_PATH_NARROWING) {
        uint32_t gap_bytes = path->failing_bytes - path->passing_bytes;
        for (uint32_t i = 1; i <= NARROW_SIZES; i++)
            add_size(probes, path->passing_bytes + gap_bytes * i / (NARROW_SIZES + 1));
        return;
    }
    bool is_first = path->attempt == 1 && !path->is_suspicious;
    if (!is_first && floor_bytes(path) < path->target_bytes) {
        add_size(probes, floor_bytes(path));
        for (uint32_t i = 0; i < COMMON_COUNT; i++) {
            uint32_t bytes = COMMON_MTUS[i] - path->header_bytes;
            if (bytes > floor_bytes(path) && bytes < path->target_bytes)
                add_size(probes, bytes);
        }
    }
    add_size(probes, path->target_bytes);
}

const um_path_probes *um_path_mtu_tick(um_path_mtu *path, int64_t wait_ns, int64_t now_ns)
{
    if (now_ns < path->due_ns)
        return NULL;
    if (path->state == UM_PATH_RESTING && !begin_due(path, now_ns))
        return NULL;
    uint32_t attempts = path->state == UM_PATH_CHECKING ? CHECK_ATTEMPTS : NARROW_ATTEMPTS;
    bool is_confirmed = path->state == UM_PATH_CHECKING && path->attempt > 0 && all_have_confirmed(path);
    if (is_confirmed)
        path->bytes = path->target_bytes;
    if (is_confirmed || (path->attempt == attempts && !conclude(path))) {
        rest(path, now_ns);
        return NULL;
    }
    path->attempt++;
    for (uint32_t i = 0; i < path->receiver_count; i++)
        path->receivers[i].attempts += path->receivers[i].attempts < CHECK_ATTEMPTS;
    choose_sizes(path);
    path->due_ns = now_ns + wait_ns;
    return &path->probes;
}

/* ---- input ---- */

void um_path_mtu_set_ceiling(um_path_mtu *path, uint32_t ceiling_bytes)
{
    bool is_limited = path->bytes < path->ceiling_bytes;
    if (ceiling_bytes == path->ceiling_bytes)
        return;
    path->ceiling_bytes = ceiling_bytes;
    if (!is_limited || path->bytes > ceiling_bytes)
        path->bytes = ceiling_bytes;
    path->state = UM_PATH_RESTING;
    path->raise_due_ns = INT64_MIN;
    path->is_suspicious = path->receiver_count > 0;
    path->suspicion_from_ns = INT64_MIN;
    path->due_ns = path->floor_bytes == 0 ? UM_NEVER_NS : resting_due_ns(path);
}

static void note_missing(um_path_mtu *path)
{
    path->has_newcomer = true;
    if (path->state == UM_PATH_RESTING)
        path->due_ns = resting_due_ns(path);
}

void um_path_mtu_on_status(um_path_mtu *path, um_address from, uint64_t receiver_id, uint16_t round, uint16_t bytes,
                           int64_t interval_ns, int64_t now_ns)
{
    if (path->floor_bytes == 0)
        return;
    um_path_receiver *receiver = find(path, receiver_id);
    if (receiver == NULL) {
        if (path->receiver_count == UM_PATH_RECEIVERS_MAX)
            expire(path, now_ns);
        if (path->receiver_count == UM_PATH_RECEIVERS_MAX)
            return;
        receiver = &path->receivers[path->receiver_count++];
        *receiver = (um_path_receiver){.id = receiver_id};
        note_missing(path);
    }
    receiver->address = from;
    receiver->expires_ns = now_ns + IDLE_INTERVALS * interval_ns + UNKNOWN_INTERVAL_NS;
    if (round == 0 || round != path->round)
        return;
    if (!has_reported(path, receiver) || bytes > receiver->bytes)
        receiver->bytes = bytes;
    receiver->round = round;
    if (receiver->is_mute && bytes >= floor_bytes(path)) {
        receiver->is_mute = false;
        note_missing(path);
    }
    if (path->state == UM_PATH_CHECKING && all_have_confirmed(path))
        path->due_ns = now_ns;
}

void um_path_mtu_on_leave(um_path_mtu *path, uint64_t receiver_id, int64_t now_ns)
{
    um_path_receiver *receiver = find(path, receiver_id);
    if (receiver == NULL)
        return;
    bool was_limiting = path->bytes < path->ceiling_bytes && um_address_equal(receiver->address, path->limited_by);
    *receiver = path->receivers[--path->receiver_count];
    if (was_limiting && path->state == UM_PATH_RESTING)
        path->raise_due_ns = path->due_ns = now_ns;
}

void um_path_mtu_on_repeat(um_path_mtu *path, uint32_t datagram_bytes, int64_t now_ns)
{
    if (path->floor_bytes == 0 || datagram_bytes > path->bytes)
        return;
    path->long_repeats = datagram_bytes > floor_bytes(path) ? path->long_repeats + 1 : 0;
    if (path->long_repeats < SUSPICION || path->state != UM_PATH_RESTING || path->is_suspicious)
        return;
    path->is_suspicious = true;
    path->due_ns = resting_due_ns(path) > now_ns ? resting_due_ns(path) : now_ns;
}
