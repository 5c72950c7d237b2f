#include "sim/world.h"

#include <stdarg.h>
#include <sys/mman.h>

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
    um_sim_free_trace(world);
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

static void happen(um_sim_world *world, const um_sim_event *event)
{
    um_sim_host *host;
    switch (event->kind) {
    case UM_SIM_EVENT_ARRIVAL:
        um_sim_on_arrival(world->hosts[event->index], event->detail);
        break;
    case UM_SIM_EVENT_TIMER:
        host = world->hosts[event->index];
        if (host->due_ns > event->time_ns) /* an earlier event has run since and scheduled a later one */
            break;
        host->due_ns = UM_NEVER_NS;
        um_sim_service(host);
        break;
    case UM_SIM_EVENT_READ:
        um_sim_on_read(world->receivers[event->index]);
        break;
    case UM_SIM_EVENT_REQUEST:
        if (event->time_ns >= world->joins[event->index]->connection->due_ns) /* no earlier one has run since */
            um_sim_on_request_event(world, event->index);
        break;
    default:
        if (world->watcher.on_event != NULL)
            world->watcher.on_event(world->watcher.owner, event->index, event->detail);
    }
}

void um_sim_run_until(um_sim_world *world, int64_t time_ns)
{
    um_sim_event event;
    uint32_t still_count = 0;
    while (world->complaint[0] == '\0' && um_sim_next_event(&world->events, time_ns, &event)) {
        still_count = event.time_ns > world->now_ns ? 0 : still_count + 1;
        if (still_count > UM_SIM_STILL_EVENTS_MAX)
            um_sim_complain(world, "time stands still at %lld ns: event %u of %u is scheduled for now, forever",
                            (long long)world->now_ns, event.kind, event.index);
        world->now_ns = event.time_ns;
        world->event_count++;
        happen(world, &event);
        if (world->watcher.on_step != NULL)
            world->watcher.on_step(world->watcher.owner);
    }
    if (world->complaint[0] == '\0' && time_ns > world->now_ns)
        world->now_ns = time_ns;
}
