#include "capture/writing/frame_merge.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/foundation/internet.h"
#include "os/clock.h"

enum {
    NS_PER_S = 1000000000,
    ON_ITS_WAY_NS = 200000, /* maximum delay from a frame's time to its arrival at a socket */
    CLOCK_STEP_NS = 1000000000,
};

static int fail(um_frame_merge *merge, const char *step, int result)
{
    merge->failed_step = step;
    return result;
}

static int open_frames(um_frame_merge *merge, um_frame_socket *frames, int fd, const um_frame_merge_filter *filter,
                       enum egress_tap_socket watched)
{
    um_frame_socket_config config = {.space_bytes = merge->ring.bytes,
                                     .filter_fd = filter->program_fd,
                                     .stamps_fd = filter->stamps_fd,
                                     .watch = &merge->ring.counters->watches[watched]};
    return um_frame_socket_open(frames, fd, &config);
}

static int open_mirror(um_frame_merge *merge, const um_frame_merge_config *config)
{
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)config->mirror_index};
    merge->mirror_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (merge->mirror_fd < 0)
        return -errno;
    int result = open_frames(merge, &merge->mirrored, merge->mirror_fd, &config->mirrored, EGRESS_TAP_MIRRORED);
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
    result = open_frames(merge, &merge->incoming, incoming_fd, &config->incoming, EGRESS_TAP_INCOMING);
    if (result != 0)
        return fail(merge, "mapping space for incoming frames", result);
    if (config->mirror_index != 0)
        result = open_mirror(merge, config);
    return fail(merge, "opening the mirror's socket", result);
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

/* Packets that the kernel itself sends on the device are not mirrored ones. */
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

static void pull(um_frame_merge *merge, enum um_frame_source source)
{
    if (source == UM_FRAME_INCOMING)
        um_frame_socket_pull(&merge->incoming);
    else if (merge->mirror_fd >= 0)
        um_frame_socket_pull(&merge->mirrored);
}

void um_frame_merge_look(um_frame_merge *merge)
{
    int64_t now_ns = um_clock_wall_ns();
    int64_t ahead_ns = um_clock_read_ns(CLOCK_TAI) - now_ns;
    merge->tai_offset_ns = (ahead_ns + NS_PER_S / 2) / NS_PER_S * NS_PER_S; /* the clocks differ by whole seconds */
    merge->incoming.clock_ahead_ns = merge->mirrored.clock_ahead_ns = merge->tai_offset_ns;
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

/* Returns true if an older frame may still follow. After the clock was set back, the old time is not waited for. */
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
        um_frame_socket_take(&merge->mirrored);
    }
}

void um_frame_merge_release(um_frame_merge *merge)
{
    um_egress_ring_release(&merge->ring);
}

bool um_frame_merge_is_empty(um_frame_merge *merge)
{
    pull(merge, UM_FRAME_INCOMING);
    pull(merge, UM_FRAME_MIRRORED);
    return oldest(merge) == NULL && um_frame_socket_is_empty(&merge->incoming) &&
           um_frame_socket_is_empty(&merge->mirrored);
}

int um_frame_merge_take_error(um_frame_merge *merge)
{
    int error = merge->incoming.error;
    merge->incoming.error = 0;
    return error;
}

uint64_t um_frame_merge_lost_count(const um_frame_merge *merge)
{
    return um_egress_ring_lost_count(&merge->ring) + um_frame_stamps_lost_count(&merge->incoming.stamps) +
           um_frame_stamps_lost_count(&merge->mirrored.stamps);
}
