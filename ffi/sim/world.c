#include "sim/world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PPM = 1000000 };

void *um_sim_take(um_sim_world *world, size_t bytes)
{
    if (bytes > UM_SIM_WORLD_BYTES - world->arena.used_bytes - UM_CACHE_LINE_BYTES)
        return NULL;
    return um_arena_take(&world->arena, bytes);
}

um_sim_world *um_sim_create(uint64_t seed)
{
    void *memory =
        mmap(NULL, UM_SIM_WORLD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    um_arena arena = {memory, 0};
    um_sim_world *world = um_arena_take(&arena, sizeof *world);
    world->arena = arena;
    world->random.state = seed;
    world->peer_random.state = seed ^ 0x706565725f736565u;
    world->hash = seed;
    world->events.capacity = UM_SIM_EVENTS_MAX;
    world->events.heap = um_sim_take(world, UM_SIM_EVENTS_MAX * sizeof *world->events.heap);
    world->datagrams = um_sim_take(world, UM_SIM_DATAGRAMS_MAX * sizeof *world->datagrams);
    world->datagram_bytes = um_sim_take(world, (size_t)UM_SIM_DATAGRAMS_MAX * UM_SIM_DATAGRAM_BYTES);
    return world;
}

void um_sim_destroy(um_sim_world *world)
{
    if (world == NULL)
        return;
    free(world->trace.bytes);
    free(world->trace_bytes.bytes);
    free(world->rows.bytes);
    free(world->payloads.bytes);
    munmap(world, UM_SIM_WORLD_BYTES);
}

void um_sim_complain(um_sim_world *world, const char *format, ...)
{
    if (world->complaint[0] != '\0')
        return; /* the first is the cause, later ones may be consequences */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->complaint, sizeof world->complaint, format, arguments);
    va_end(arguments);
}

const char *um_sim_complaint(const um_sim_world *world)
{
    return world->complaint[0] != '\0' ? world->complaint : NULL;
}

int64_t um_sim_now_ns(const um_sim_world *world)
{
    return world->now_ns;
}

uint64_t um_sim_hash(const um_sim_world *world)
{
    return world->hash;
}

/* ---- clocks: local = world + offset + drift ---- */

static int64_t local_at(const um_sim_host *host, int64_t world_ns)
{
    return world_ns + host->config.clock_offset_ns + world_ns / PPM * host->config.clock_drift_ppm +
           world_ns % PPM * host->config.clock_drift_ppm / PPM;
}

int64_t um_sim_local_ns(const um_sim_host *host)
{
    return local_at(host, host->world->now_ns);
}

int64_t um_sim_world_ns(const um_sim_host *host, int64_t local_ns)
{
    int64_t world_ns = local_ns - host->config.clock_offset_ns;
    if (host->config.clock_drift_ppm == 0)
        return world_ns;
    world_ns -= world_ns / PPM * host->config.clock_drift_ppm;
    while (local_at(host, world_ns) > local_ns)
        world_ns -= 1 + (local_at(host, world_ns) - local_ns) / 2;
    while (local_at(host, world_ns) < local_ns)
        world_ns += 1 + (local_ns - local_at(host, world_ns)) / 2;
    return world_ns;
}

/* ---- running ---- */

void um_sim_run_until(um_sim_world *world, int64_t time_ns)
{
    um_sim_event event;
    uint32_t still_count = 0;
    while (world->complaint[0] == '\0' && um_sim_next_event(&world->events, time_ns, &event)) {
        still_count = event.time_ns > world->now_ns ? 0 : still_count + 1;
        if (still_count > UM_SIM_STILL_EVENTS_MAX)
            um_sim_complain(world, "time stands still at %lld ns: an event of %u is scheduled for now, forever",
                            (long long)world->now_ns, event.index);
        world->now_ns = event.time_ns;
        world->event_count++;
        event.handler(world, event.index, event.detail);
        if (world->watcher.on_step != NULL)
            world->watcher.on_step(world->watcher.owner);
    }
    if (world->complaint[0] == '\0' && time_ns > world->now_ns)
        world->now_ns = time_ns;
}
