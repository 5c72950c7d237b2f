#include "core/resolution/lbmr.h"

enum {
    TYPE_MASK = 0x07, /* 0: queries and advertisements */
    HAS_PACKET_OPTIONS = 0x08,
    TIR_HAS_OPTIONS = 0x80,
    TIR_TRANSPORT = 0x7f,
    TRANSPORT_TCP = 0x00,
    TRANSPORT_LBTRU = 0x01,
    TRANSPORT_LBTRM = 0x10,
    TRANSPORT_LBTIPC = 0x40,
    LBTRM_BYTES = 16,
    LBTIPC_BYTES = 10,
    UNICAST_BYTES = 10,
    UNICAST_WITHOUT_SESSION_BYTES = 6,
    OPTION_HEAD_BYTES = 2,
    OPTION_TOTAL_LENGTH = 0,
    OPTION_IPV6_ADDRESSES = 85, /* flags, source, group: in place of both IPv4 addresses, which are zero */
    OPTION_FLAGS_BYTES = 2,
    IPV6_ADDRESSES_BYTES = OPTION_HEAD_BYTES + OPTION_FLAGS_BYTES + 2 * UM_IPV6_BYTES,
    PACKET_OPTION_TOTAL_LENGTH = 0x80,
    TOTAL_LENGTH_BYTES = 4, /* bytes of either option with a total length */
};

typedef struct option {
    uint8_t type;
    uint8_t bytes;
    const uint8_t *body;
} option;

static inline uint32_t left(const um_lbmr_reader *reader)
{
    return (uint32_t)(reader->end - reader->at);
}

bool um_lbmr_begin(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes)
{
    if (bytes < UM_LBMR_HEADER_BYTES || !um_lbmr_knows_version(data[0]) || (data[0] & TYPE_MASK) != 0)
        return false;
    *reader = (um_lbmr_reader){.at = data + UM_LBMR_HEADER_BYTES,
                               .end = data + bytes,
                               .query_count = data[1],
                               .advertisement_count = um_load_be16(data + 2),
                               .has_packet_options = (data[0] & HAS_PACKET_OPTIONS) != 0};
    return true;
}

bool um_lbmr_read_query(um_lbmr_reader *reader, um_lbmr_name *topic)
{
    uint32_t most = left(reader);
    most = most < UM_LBMR_NAME_BYTES_MAX + 1 ? most : UM_LBMR_NAME_BYTES_MAX + 1;
    const uint8_t *nul = memchr(reader->at, 0, most);
    if (nul == NULL || nul == reader->at)
        return false;
    *topic = (um_lbmr_name){reader->at, (uint32_t)(nul - reader->at)};
    reader->at = nul + 1;
    return true;
}

static bool read_option(um_lbmr_reader *reader, option *found)
{
    if (left(reader) < OPTION_HEAD_BYTES)
        return false;
    *found = (option){reader->at[0], reader->at[1], reader->at + OPTION_HEAD_BYTES};
    if (found->bytes < OPTION_HEAD_BYTES || found->bytes > left(reader))
        return false;
    reader->at += found->bytes;
    return true;
}

static bool is_total(const option *found, uint8_t type)
{
    return found->type == type && found->bytes == TOTAL_LENGTH_BYTES;
}

/* The first option contains the length of all options. *ipv6 is the option with IPv6 addresses, or NULL. */
static bool read_topic_options(um_lbmr_reader *reader, um_lbmr_advertisement *advertisement, const uint8_t **ipv6)
{
    const uint8_t *start = reader->at;
    option found;
    if (!read_option(reader, &found) || !is_total(&found, OPTION_TOTAL_LENGTH))
        return false;
    uint32_t total = um_load_be16(found.body);
    while (reader->at - start < total)
        if (!read_option(reader, &found))
            return false;
        else if (found.type == OPTION_IPV6_ADDRESSES && found.bytes == IPV6_ADDRESSES_BYTES)
            *ipv6 = found.body + OPTION_FLAGS_BYTES;
    advertisement->options = start;
    advertisement->options_bytes = total;
    return reader->at - start == total;
}

/* The last option contains the length of all options. */
bool um_lbmr_read_packet_options(um_lbmr_reader *reader)
{
    if (!reader->has_packet_options)
        return true;
    const uint8_t *start = reader->at;
    option found;
    do {
        if (!read_option(reader, &found))
            return false;
    } while (found.type != PACKET_OPTION_TOTAL_LENGTH);
    return is_total(&found, PACKET_OPTION_TOTAL_LENGTH) && um_load_be16(found.body) == reader->at - start;
}

static bool read_lbtrm(const uint8_t *info, uint32_t bytes, const uint8_t *ipv6, um_session_id *session)
{
    if (bytes != LBTRM_BYTES)
        return false;
    *session = (um_session_id){.source = um_address_of_v4(um_load_be32(info), um_load_be16(info + 14)),
                               .group = um_address_of_v4(um_load_be32(info + 4), um_load_be16(info + 12)),
                               .session_id = um_load_be32(info + 8),
                               .transport = UM_TRANSPORT_LBTRM};
    if (ipv6 == NULL || um_ip_is_set(session->source.ip) || um_ip_is_set(session->group.ip))
        return true;
    um_ip source = um_ip_load_v6(ipv6), group = um_ip_load_v6(ipv6 + UM_IPV6_BYTES);
    if (um_ip_is_v6(source) && um_ip_is_v6(group)) { /* not mapped IPv4 addresses, which have another form */
        session->source.ip = source;
        session->group.ip = group;
    }
    return true;
}

static bool read_unicast(const uint8_t *info, uint32_t bytes, enum um_transport transport, um_session_id *session)
{
    if (bytes != UNICAST_BYTES && bytes != UNICAST_WITHOUT_SESSION_BYTES)
        return false;
    bool has_session = bytes == UNICAST_BYTES;
    *session = (um_session_id){.source = um_address_of_v4(um_load_be32(info), um_load_be16(info + bytes - 2)),
                               .session_id = has_session ? um_load_be32(info + 4) : 0,
                               .transport = transport};
    return true;
}

/* The source's address is the host id, in the form of an IPv4 address, and the transport id. */
static bool read_lbtipc(const uint8_t *info, uint32_t bytes, um_session_id *session)
{
    if (bytes != LBTIPC_BYTES)
        return false;
    *session = (um_session_id){.source = um_address_of_v4(um_load_be32(info), um_load_be16(info + 8)),
                               .session_id = um_load_be32(info + 4),
                               .transport = UM_TRANSPORT_LBTIPC};
    return true;
}

/* The information of unknown transports is not checked. */
static bool read_transport(uint8_t transport, const uint8_t *info, uint32_t bytes, const uint8_t *ipv6,
                           um_lbmr_advertisement *advertisement)
{
    um_session_id *session = &advertisement->session;
    bool is_read;
    switch (transport) {
    case TRANSPORT_LBTRM:
        is_read = read_lbtrm(info, bytes, ipv6, session);
        break;
    case TRANSPORT_LBTRU:
        is_read = read_unicast(info, bytes, UM_TRANSPORT_LBTRU, session);
        break;
    case TRANSPORT_TCP:
        is_read = read_unicast(info, bytes, UM_TRANSPORT_TCP, session);
        break;
    case TRANSPORT_LBTIPC:
        is_read = read_lbtipc(info, bytes, session);
        break;
    default:
        return true;
    }
    advertisement->is_joinable = is_read && um_lbmr_is_joinable(session);
    return is_read;
}

bool um_lbmr_read_advertisement(um_lbmr_reader *reader, um_lbmr_advertisement *advertisement)
{
    *advertisement = (um_lbmr_advertisement){0};
    if (!um_lbmr_read_query(reader, &advertisement->topic) || left(reader) < UM_LBMR_TIR_FIXED_BYTES)
        return false;
    const uint8_t *ipv6 = NULL;
    uint8_t transport = reader->at[0];
    uint32_t info_bytes = reader->at[1];
    advertisement->ttl = um_load_be16(reader->at + 2);
    advertisement->topic_index = um_load_be32(reader->at + 4);
    reader->at += UM_LBMR_TIR_FIXED_BYTES;
    if (transport & TIR_HAS_OPTIONS && !read_topic_options(reader, advertisement, &ipv6))
        return false;
    if (left(reader) < info_bytes)
        return false;
    const uint8_t *info = reader->at;
    reader->at += info_bytes;
    return read_transport(transport & TIR_TRANSPORT, info, info_bytes, ipv6, advertisement);
}

bool um_lbmr_check(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes)
{
    um_lbmr_name topic;
    um_lbmr_advertisement advertisement;
    if (!um_lbmr_begin(reader, data, bytes))
        return false;
    um_lbmr_reader walking = *reader;
    for (uint32_t i = 0; i < reader->query_count; i++)
        if (!um_lbmr_read_query(&walking, &topic))
            return false;
    for (uint32_t i = 0; i < reader->advertisement_count; i++)
        if (!um_lbmr_read_advertisement(&walking, &advertisement))
            return false;
    return um_lbmr_read_packet_options(&walking);
}

bool um_lbmr_is_joinable(const um_session_id *session)
{
    um_ip source = session->source.ip, group = session->group.ip;
    if (session->transport == UM_TRANSPORT_LBTIPC)
        return um_ip_is_set(source) && session->session_id != 0 && session->source.port != 0;
    if (!um_ip_is_host(source) || session->source.port == 0)
        return false;
    if (session->transport != UM_TRANSPORT_LBTRM)
        return !um_ip_is_v6(source);
    return um_ip_is_multicast(group) && um_ip_is_v6(group) == um_ip_is_v6(source) && session->session_id != 0 &&
           session->group.port != 0;
}
