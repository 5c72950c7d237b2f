#include "io/frame_merge.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/internet.h"
#include "io/clock.h"

enum {
    NS_PER_S = 1000000000,
    ON_ITS_WAY_NS = 200000, /* from a frame's time until a socket has it, at most */
    CLOCK_STEP_NS = 1000000000,
};

static int fail(um_frame_merge *merge, const char *step, int result)
{
    merge->failed_step = step;
    return result;
}

static int open_mirror(um_frame_merge *merge, uint32_t mirror_index)
{
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)mirror_index};
    merge->mirror_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (merge->mirror_fd < 0)
        return -errno;
    int result = um_frame_socket_open(&merge->mirrored, merge->mirror_fd, merge->ring.bytes);
    if (result == 0 && bind(merge->mirror_fd, (const struct sockaddr *)&address, sizeof address) != 0)
        result = -errno;
    return result;
}

int um_frame_merge_open(um_frame_merge *merge, const um_frame_merge_config *config, int incoming_fd)
{
    *merge = (um_frame_merge){.mirror_fd = -1};
    int result = um_egress_ring_open(&merge->ring, &config->maps);
    if (result != 0)
        return fail(merge, "mapping the egress ring", result);
    result = um_frame_socket_open(&merge->incoming, incoming_fd, merge->ring.bytes);
    if (result != 0)
        return fail(merge, "room for what comes in", result);
    if (config->mirror_index != 0)
        result = open_mirror(merge, config->mirror_index);
    return fail(merge, "listening to the mirror", result);
}

void um_frame_merge_close(um_frame_merge *merge)
{
    um_frame_socket_close(&merge->mirrored);
    um_frame_socket_close(&merge->incoming);
    um_egress_ring_close(&merge->ring);
    if (merge->mirror_fd >= 0)
        close(merge->mirror_fd);
    merge->mirror_fd = -1;
}

/* ---- the mirror ---- */

static uint32_t packet_count(const um_seen_frame *seen)
{
    uint32_t header_bytes = ETH_HLEN + (seen->data[ETH_HLEN] & 15u) * 4 + UM_UDP_HEADER_BYTES;
    return seen->wire_bytes > header_bytes ? (seen->wire_bytes - header_bytes - 1) / seen->segment_bytes + 1 : 1;
}

/* What the kernel itself may send on the device is none of the mirror's. */
static const um_seen_frame *next_mirrored(um_frame_merge *merge)
{
    const um_seen_frame *seen;
    while ((seen = um_frame_socket_next(&merge->mirrored)) != NULL) {
        if (seen->is_outgoing && seen->segment_bytes > 0 && seen->captured_bytes > ETH_HLEN)
            return seen;
        um_frame_socket_take(&merge->mirrored);
    }
    return NULL;
}

static void settle(um_frame_merge *merge)
{
    if (merge->mirrored.staged_bytes == 0 && merge->settled_count > merge->mirrored_count + merge->lost_count)
        merge->lost_count = merge->settled_count - merge->mirrored_count;
}

/* What the tap has counted is in the socket or found no room there: nothing of it is on its way. */
static void pull_mirrored(um_frame_merge *merge)
{
    uint64_t count = __atomic_load_n(&merge->ring.counters->mirrored_count, __ATOMIC_ACQUIRE);
    if (um_frame_socket_pull(&merge->mirrored))
        merge->settled_count = count;
    settle(merge);
}

static void pull(um_frame_merge *merge, enum um_frame_source source)
{
    if (source == UM_FRAME_INCOMING)
        um_frame_socket_pull(&merge->incoming);
    else if (merge->mirror_fd >= 0)
        pull_mirrored(merge);
}

void um_frame_merge_look(um_frame_merge *merge)
{
    int64_t now_ns = um_clock_wall_ns();
    int64_t ahead_ns = um_clock_read_ns(CLOCK_TAI) - now_ns;
    merge->tai_offset_ns = (ahead_ns + NS_PER_S / 2) / NS_PER_S * NS_PER_S; /* the clocks are whole seconds apart */
}

/* ---- order ---- */

static const um_seen_frame *next_copied(um_frame_merge *merge)
{
    const struct egress_tap_record *record = um_egress_ring_next(&merge->ring);
    if (record == NULL)
        return NULL;
    merge->copied = (um_seen_frame){.time_ns = (int64_t)record->time_ns - merge->tai_offset_ns,
                                    .data = (const uint8_t *)(record + 1),
                                    .captured_bytes = record->captured_bytes,
                                    .wire_bytes = record->wire_bytes,
                                    .segment_bytes = record->segment_bytes,
                                    .segment_count = record->segment_count,
                                    .has_vlan = record->has_vlan,
                                    .vlan_type = record->vlan_type,
                                    .vlan_tci = record->vlan_tci,
                                    .is_outgoing = true};
    return &merge->copied;
}

static const um_seen_frame *oldest(um_frame_merge *merge)
{
    const um_seen_frame *frames[] = {next_copied(merge), um_frame_socket_next(&merge->incoming), next_mirrored(merge)};
    const um_seen_frame *found = NULL;
    for (int i = UM_FRAME_COPIED; i <= UM_FRAME_MIRRORED; i++) {
        if (frames[i] == NULL || (found != NULL && found->time_ns <= frames[i]->time_ns))
            continue;
        found = frames[i];
        merge->next_source = (enum um_frame_source)i;
    }
    return found;
}

/* Whether the source may still show something older. When the clock was set back, nobody waits for the old time. */
static bool may_have_older(const um_frame_socket *frames, int64_t time_ns)
{
    if (frames->memory == NULL || frames->staged_bytes > 0)
        return false;
    if (frames->empty_ns == INT64_MIN)
        return true;
    int64_t early_ns = time_ns + ON_ITS_WAY_NS - frames->empty_ns;
    return early_ns > 0 && early_ns < CLOCK_STEP_NS;
}

const um_seen_frame *um_frame_merge_next(um_frame_merge *merge)
{
    const um_seen_frame *found = oldest(merge);
    if (found == NULL || may_have_older(&merge->incoming, found->time_ns)) {
        pull(merge, UM_FRAME_INCOMING);
        found = oldest(merge);
    }
    if (found == NULL || may_have_older(&merge->mirrored, found->time_ns)) {
        pull(merge, UM_FRAME_MIRRORED);
        found = oldest(merge);
    }
    bool must_wait = found != NULL && (may_have_older(&merge->incoming, found->time_ns) ||
                                       may_have_older(&merge->mirrored, found->time_ns));
    return must_wait ? NULL : found;
}

void um_frame_merge_take(um_frame_merge *merge)
{
    if (merge->next_source == UM_FRAME_COPIED) {
        um_egress_ring_take(&merge->ring);
    } else if (merge->next_source == UM_FRAME_INCOMING) {
        um_frame_socket_take(&merge->incoming);
    } else {
        merge->mirrored_count += packet_count(um_frame_socket_next(&merge->mirrored));
        um_frame_socket_take(&merge->mirrored);
        settle(merge);
    }
}

void um_frame_merge_give_back(um_frame_merge *merge)
{
    um_egress_ring_give_back(&merge->ring);
}

bool um_frame_merge_is_empty(um_frame_merge *merge)
{
    pull(merge, UM_FRAME_INCOMING);
    pull(merge, UM_FRAME_MIRRORED);
    return oldest(merge) == NULL;
}

int um_frame_merge_take_error(um_frame_merge *merge)
{
    int error = merge->incoming.error;
    merge->incoming.error = 0;
    return error;
}

uint64_t um_frame_merge_lost_count(const um_frame_merge *merge)
{
    return um_egress_ring_lost_count(&merge->ring) + merge->lost_count;
}
