#include "core/resolution/relayed_records.h"

enum { PLACES = 131072 };

typedef struct place {
    uint64_t hash; /* 0: free */
    int64_t relayed_ns;
} place;

struct um_relayed_records {
    um_siphash_key key;
    uint64_t round; /* hashes of earlier rounds no longer match */
    place places[PLACES];
};

size_t um_relayed_records_footprint(void)
{
    return sizeof(um_relayed_records);
}

um_relayed_records *um_relayed_records_init(void *memory, um_siphash_key key)
{
    um_relayed_records *records = memory;
    records->key = key;
    return records;
}

void um_relayed_records_forget(um_relayed_records *records)
{
    records->round++;
}

/* Returns true if a record was relayed for the client within the last `repeat_ns`; else notes it as relayed now. */
static bool is_repeated(um_relayed_records *records, const uint8_t *start, const uint8_t *end, uint64_t client,
                        int64_t now_ns, int64_t repeat_ns)
{
    um_siphash_key key = {records->key.k0 ^ records->round, records->key.k1 ^ client};
    uint64_t hash = um_siphash_bytes(key, start, (size_t)(end - start));
    place *its = &records->places[hash % PLACES];
    hash |= (uint64_t)1 << 63;
    if (its->hash == hash && now_ns - its->relayed_ns < repeat_ns)
        return true;
    *its = (place){hash, now_ns};
    return false;
}

bool um_relayed_records_take(um_relayed_records *records, const uint8_t *data, uint32_t bytes, uint64_t client,
                             int64_t now_ns, int64_t repeat_ns, um_relayed_part *part)
{
    um_lbmr_reader reader;
    um_lbmr_name topic;
    um_lbmr_advertisement advertisement;
    if (bytes > UM_LBMR_DATAGRAM_BYTES_MAX || !um_lbmr_check(&reader, data, bytes))
        return false;
    uint32_t count = reader.query_count + reader.advertisement_count;
    part->has_packet_options = reader.has_packet_options;
    part->query_count = 0;
    part->record_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *start = reader.at;
        bool is_query = i < reader.query_count;
        /* um_lbmr_check has read both without error. */
        (void)(is_query ? um_lbmr_read_query(&reader, &topic) : um_lbmr_read_advertisement(&reader, &advertisement));
        if (is_repeated(records, start, reader.at, client, now_ns, repeat_ns))
            continue;
        uint32_t length = (uint32_t)(reader.at - start) - is_query;
        part->records[part->record_count++] = (um_lbmr_place){(uint32_t)(start - data), length};
        part->query_count += is_query;
    }
    part->left_out_count = count - part->record_count;
    return true;
}
