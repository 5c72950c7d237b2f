#include "capture/reading/copies.h"

#include "core/foundation/internet.h"

enum { WORD_BYTES = 8 };

static uint64_t mixed(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 32;
}

static uint64_t load_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Two sums are computed at a time, which is faster than one after the other. */
static uint64_t fingerprint_of_bytes(uint64_t seed, const uint8_t *data, size_t bytes)
{
    uint64_t even = mixed(seed, bytes), odd = ~seed;
    for (; bytes >= 2 * WORD_BYTES; bytes -= 2 * WORD_BYTES, data += 2 * WORD_BYTES) {
        even = mixed(even, load_word(data));
        odd = mixed(odd, load_word(data + WORD_BYTES));
    }
    uint8_t rest[2 * WORD_BYTES] = {0};
    memcpy(rest, data, bytes);
    even = mixed(even, load_word(rest));
    odd = mixed(odd, load_word(rest + WORD_BYTES));
    return mixed(even, odd);
}

/* The bytes between the addresses and the payload are the transport header, and the options of IP. */
static uint64_t fingerprint_of(const um_captured_frame *frame)
{
    enum { IPV4_ID_BEFORE_SOURCE = 8 };
    uint32_t payload_bytes = frame->payload_captured_bytes < UM_COPIES_PAYLOAD_BYTES ? frame->payload_captured_bytes
                                                                                     : UM_COPIES_PAYLOAD_BYTES;
    /* The id of IPv4, and the flags and the offset of a fragment. */
    uint32_t id = frame->ip_version == 4 ? um_load_be32(frame->source - IPV4_ID_BEFORE_SOURCE) : 0;
    return fingerprint_of_bytes((uint64_t)id << 32 | frame->payload_bytes, frame->source,
                                (size_t)(frame->payload + payload_bytes - frame->source));
}

static bool is_compared(const um_capture_packet *packet, const um_captured_frame *frame)
{
    return packet->is_timed && packet->interface >= 0 &&
           (frame->status == UM_CAPTURED_UDP || frame->status == UM_CAPTURED_TCP ||
            frame->status == UM_CAPTURED_FRAGMENT);
}

static uint64_t count_compared(const um_copies *copies)
{
    return copies->packet_count < UM_COPIES_PACKETS_MAX ? copies->packet_count : (uint64_t)UM_COPIES_PACKETS_MAX;
}

static uint32_t alike_of(uint64_t fingerprint)
{
    return (uint32_t)fingerprint % UM_COPIES_ALIKE;
}

static bool is_repeated(const um_copies *copies, const um_copied_packet *packet)
{
    if (UM_LIKELY(copies->alike[alike_of(packet->fingerprint)] == 0))
        return false;
    for (uint64_t back = 1; back <= count_compared(copies); back++) {
        const um_copied_packet *before = &copies->packets[(copies->packet_count - back) % UM_COPIES_PACKETS_MAX];
        if (before->interface != packet->interface)
            continue;
        uint64_t apart_ns = packet->time_ns < before->time_ns ? (uint64_t)before->time_ns - (uint64_t)packet->time_ns
                                                              : (uint64_t)packet->time_ns - (uint64_t)before->time_ns;
        if (apart_ns > UM_COPIES_WITHIN_NS)
            return false;
        if (before->fingerprint == packet->fingerprint)
            return true;
    }
    return false;
}

/* Receivers send their short answers to the source, over multicast sessions as over others. */
static bool is_evidence(const um_captured_frame *frame)
{
    enum { ANSWER_BYTES_MAX = 127, FIRST_GROUP = 224, LAST_GROUP = 239, IPV6_GROUP = 0xff };
    uint8_t first = frame->destination[0];
    bool is_group = frame->ip_version == 4 ? first >= FIRST_GROUP && first <= LAST_GROUP : first == IPV6_GROUP;
    return is_group || frame->payload_bytes > (frame->status == UM_CAPTURED_TCP ? 0 : ANSWER_BYTES_MAX);
}

um_copy_found um_copies_take(um_copies *copies, const um_capture_packet *packet, const um_captured_frame *frame)
{
    if (!is_compared(packet, frame))
        return (um_copy_found){false, false};
    um_copied_packet taken = {.fingerprint = fingerprint_of(frame),
                              .time_ns = packet->time_ns,
                              .interface = packet->interface,
                              .is_evidence = is_evidence(frame)};
    um_copy_found found = {.is_repeated = is_repeated(copies, &taken),
                           .is_mirrored = copies->repeated_count >= UM_COPIES_MIRRORED_MIN &&
                                          3 * copies->repeated_count >= copies->evidence_count};
    taken.is_repeated = found.is_repeated;
    um_copied_packet *slot = &copies->packets[copies->packet_count % UM_COPIES_PACKETS_MAX];
    copies->alike[alike_of(slot->fingerprint)] -= copies->packet_count++ >= UM_COPIES_PACKETS_MAX;
    copies->alike[alike_of(taken.fingerprint)]++;
    copies->evidence_count += (uint32_t)taken.is_evidence - (uint32_t)slot->is_evidence;
    copies->repeated_count +=
        (uint32_t)(taken.is_evidence && taken.is_repeated) - (uint32_t)(slot->is_evidence && slot->is_repeated);
    *slot = taken;
    return found;
}

bool um_copies_is_settled(const um_copies *copies)
{
    return copies->packet_count >= 2 * (uint64_t)UM_COPIES_PACKETS_MAX;
}

uint64_t um_copies_stored_bytes(const um_copies *copies)
{
    return copies->packet_count == 0 ? 0 : sizeof *copies;
}

void um_copies_store(const um_copies *copies, uint8_t *out, uint64_t capacity)
{
    if (copies->packet_count > 0 && capacity >= sizeof *copies)
        memcpy(out, copies, sizeof *copies);
}

bool um_copies_load(um_copies *copies, const uint8_t *stored, uint64_t bytes)
{
    if (bytes != sizeof *copies)
        return bytes == 0;
    memcpy(copies, stored, sizeof *copies);
    return true;
}
