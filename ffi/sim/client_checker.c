#include "sim/client_checker.h"

#include "sim/adversary.h"

enum { LONGER_MAX = 12, ANSWERS_A_SLICE = 64, SLICE_NS = 10000000 };

#define REQUIRE(world, condition, format, ...)                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            um_sim_complain((world), "t=%lld ns: " format, (long long)(world)->now_ns, __VA_ARGS__);                   \
    } while (0)

void um_sim_clients_on_control(um_sim_client_checker *checker, const um_sim_host *host, const um_sim_datagram *datagram)
{
    checker->host = host;
    checker->from = datagram->from;
    checker->time_ns = host->world->now_ns;
    checker->length = datagram->length;
    checker->is_answered = false;
}

/* Returns the session that sends from this address, or -1 for a receiver. */
static int session_at(const um_sim_world *world, um_address from)
{
    for (uint32_t i = 0; i < world->session_count; i++)
        if (um_address_equal(world->sessions[i]->link.from, from))
            return (int)i;
    return -1;
}

static void check_answer(um_sim_client_checker *checker, const um_sim_host *host, const um_sim_datagram *datagram,
                         int session)
{
    um_sim_world *world = host->world;
    int64_t now_ns = um_sim_local_ns(host);
    bool is_answer = checker->host == host && checker->time_ns == world->now_ns && !checker->is_answered &&
                     um_address_equal(checker->from, datagram->to);
    REQUIRE(world, is_answer, "host %u answers %#x:%u, which sent nothing", host->index, um_ip_v4(datagram->to.ip),
            datagram->to.port);
    REQUIRE(world, datagram->length <= checker->length + LONGER_MAX, "host %u answers %u bytes with %u", host->index,
            checker->length, datagram->length);
    checker->is_answered = true;
    if (!checker->answers[session].has_any) {
        checker->answers[session].has_any = true;
        checker->answers[session].first_ns = now_ns;
    }
    uint64_t slices = (uint64_t)(now_ns - checker->answers[session].first_ns) / SLICE_NS + 1;
    REQUIRE(world, ++checker->answers[session].count <= ANSWERS_A_SLICE * slices,
            "session %d: %llu answers in %llu slices of 10 ms", session,
            (unsigned long long)checker->answers[session].count, (unsigned long long)slices);
}

/* True if an honest receiver has opened this port, or if it is the adversary's. */
static bool is_receiving(const um_sim_world *world, um_address to)
{
    for (uint32_t i = 0; i < world->host_count; i++)
        if (um_ip_equal(world->hosts[i]->address.ip, to.ip))
            return (uint16_t)(to.port - UM_SIM_RECEIVE_PORT) < world->hosts[i]->receive_port_count;
    return um_ip_equal(to.ip, um_ip_of_v4(UM_SIM_OWN_IP));
}

void um_sim_clients_on_sent(um_sim_client_checker *checker, const um_sim_host *host, const um_sim_datagram *datagram)
{
    int session = session_at(host->world, datagram->from);
    if (session < 0)
        return;
    bool is_syn = datagram->entry.type == UM_LBTRM_SM && datagram->entry.flags & UM_LBTRU_FLAG_SYN;
    if (is_syn || datagram->entry.type == UM_LBTRU_RST)
        check_answer(checker, host, datagram, session);
    else
        REQUIRE(host->world, is_receiving(host->world, datagram->to),
                "host %u sends the stream to %#x:%u, which did not request it", host->index, um_ip_v4(datagram->to.ip),
                datagram->to.port);
}

static um_sim_session *source_of(const um_sim_world *world, const um_session_id *id)
{
    for (uint32_t i = 0; i < world->session_count; i++)
        if (um_address_equal(world->sessions[i]->link.from, id->source))
            return world->sessions[i];
    return NULL;
}

static void check_receiver(um_sim_world *world, const um_sim_host *host, const um_receiver_session *session)
{
    const um_sim_session *source = source_of(world, &session->config.id);
    if (session->connection.state != UM_CONNECTION_ESTABLISHED || source == NULL)
        return;
    uint32_t expected = um_client_map_id(&source->core.clients, session->local);
    REQUIRE(world, session->connection.client_id == expected,
            "host %u: port %u is connected under client id %#x, which is another client's", host->index,
            session->local.port, session->connection.client_id);
}

void um_sim_clients_check(um_sim_world *world)
{
    for (uint32_t h = 0; h < world->host_count; h++)
        for (uint32_t i = 0; i < world->hosts[h]->node->session_count; i++)
            check_receiver(world, world->hosts[h], world->hosts[h]->node->sessions[i]);
}
