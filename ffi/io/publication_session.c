/* Source sessions of a context: their sockets and links, their memory, their place in the context. */
#include <sys/eventfd.h>
#include <unistd.h>

#include "io/context.h"
#include "os/clock.h"

static um_publication_session *free_session(um_context *context)
{
    for (uint32_t i = 0; i < UM_CONTEXT_SESSIONS_MAX; i++) {
        if (context->sessions[i].in_use)
            continue;
        if (i >= context->session_limit)
            context->session_limit = i + 1;
        return &context->sessions[i];
    }
    return NULL;
}

static int open_sockets(um_publication_session *session, uint16_t port_low, uint16_t port_high)
{
    um_socket_config config = um_context_socket_config(session->context);
    int result = -EADDRINUSE;
    for (uint32_t port = port_low; port <= port_high && result == -EADDRINUSE; port++)
        result = um_socket_open_unicast(&session->nak_link, &config, (uint16_t)port);
    session->context->error_step = session->nak_link.failed_step;
    if (result != 0)
        return result;
    result = um_socket_open_unicast(&session->data_link, &config, 0);
    session->context->error_step = session->data_link.failed_step;
    if (result != 0)
        um_socket_close(&session->nak_link);
    return result;
}

/* Data leaves by the context's port, under the address and the port of the NAK socket. */
static int open_port_link(um_publication_session *session)
{
    um_port *port = session->context->port;
    if (port == NULL)
        return 0;
    um_port_sender sender = {session->nak_link.local, session->context->config.ttl, &session->data_link.base};
    session->context->error_step = "a link on the port";
    return port->ops->open_link(port, &sender, &session->port_link);
}

static void close_port_link(um_publication_session *session)
{
    um_port *port = session->context->port;
    if (session->port_link != NULL && port != NULL)
        port->ops->close_link(port, session->port_link);
    session->port_link = NULL;
}

/* Takes over the memory when it succeeds. */
static int open_session(um_context *context, um_session_config *config, uint16_t port_low, uint16_t port_high,
                        void *memory, um_publication_session **opened)
{
    um_publication_session *session = free_session(context);
    context->error_step = "session table";
    if (session == NULL)
        return -ENOSPC;
    memset(session, 0, sizeof *session);
    session->context = context;
    int result = open_sockets(session, port_low, port_high);
    if (result != 0)
        return result;
    session->memory = memory;
    session->memory_bytes = um_session_footprint(config);
    um_publishing_init(session);
    session->wakeup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    result = session->wakeup_fd < 0 ? -errno : open_port_link(session);
    if (result != 0) {
        if (session->wakeup_fd >= 0)
            close(session->wakeup_fd);
        um_socket_close(&session->nak_link);
        um_socket_close(&session->data_link);
        return result;
    }
    config->nak_port = session->nak_link.local.port;
    if (session->port_link != NULL)
        um_tap_link_init(&session->tapped, session->port_link, &context->tap, session->nak_link.local);
    else
        um_tap_link_init(&session->tapped, &session->data_link.base, &context->tap, session->data_link.local);
    um_session_init(&session->core, session->memory, config, &session->tapped.base, &context->limits, um_clock_ns());
    session->in_use = true;
    *opened = session;
    return um_context_watch(context, session->nak_link.fd, UM_WATCH_SESSION, (uint32_t)(session - context->sessions));
}

int um_session_open(um_context *context, um_session_config *config, uint16_t port_low, uint16_t port_high,
                    um_publication_session **session)
{
    context->error_step = "session memory";
    size_t bytes = um_session_footprint(config);
    if (bytes == 0)
        return -EINVAL;
    void *memory = um_map(bytes);
    if (memory == NULL)
        return -ENOMEM;
    um_back(memory, bytes); /* takes its time: the loop goes on meanwhile */
    um_context_lock(context);
    int result = open_session(context, config, port_low, port_high, memory, session);
    um_context_unlock(context);
    um_context_wake_by(context, 0);
    if (result != 0)
        um_unmap(memory, bytes);
    return result;
}

void um_session_limit_datagram(um_publication_session *session, uint32_t bytes)
{
    um_session_set_datagram_max(&session->core, bytes);
}

void um_session_shut(um_publication_session *session)
{
    um_context_lock(session->context);
    um_session_close(&session->core);
    um_lock_sender(&session->core);
    session->in_use = false;
    um_fresh_forget(&session->core.fresh, INT64_MAX); /* with what the link has lent for it */
    um_lock_release(&session->core.sender_lock);
    close_port_link(session);
    um_context_close_link(session->context, &session->data_link);
    um_context_close_link(session->context, &session->nak_link);
    close(session->wakeup_fd);
    um_context_unlock(session->context);
}

void *um_session_memory(const um_publication_session *session, size_t *bytes)
{
    *bytes = session->memory_bytes;
    return session->memory;
}
