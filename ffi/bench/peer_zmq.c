#include "bench/peer_zmq.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "os/clock.h"

/* Constants of zmq.h, stable in its ABI. */
enum {
    ZMQ_SUB = 2,
    ZMQ_PULL = 7,
    ZMQ_PUSH = 8,
    ZMQ_XPUB = 9,
    ZMQ_SUBSCRIBE = 6,
    ZMQ_SNDHWM = 23,
    ZMQ_RCVHWM = 24,
    ZMQ_RCVTIMEO = 27,
    ZMQ_XPUB_NODROP = 69,
    LOOKS_AT_CLOCK_EVERY = 256,
};

typedef struct zmq {
    void *library;
    void *context;
    void *socket;
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*open)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t length);
    int (*bind)(void *socket, const char *endpoint);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *data, size_t length, int flags);
    int (*recv)(void *socket, void *data, size_t length, int flags);
} zmq;

static int64_t cpu_ns(void)
{
    return um_clock_read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static bool find(zmq *z, const char *name, void *function)
{
    void *found = dlsym(z->library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static int set(zmq *z, int option, int value)
{
    return z->setsockopt(z->socket, option, &value, sizeof value);
}

static void shut(zmq *z)
{
    if (z->socket != NULL)
        z->close(z->socket);
    if (z->context != NULL)
        z->ctx_term(z->context);
    if (z->library != NULL)
        dlclose(z->library);
}

static int open_socket(zmq *z, const char *library, int type, const um_peer_zmq_config *config)
{
    *z = (zmq){.library = dlopen(library, RTLD_NOW | RTLD_LOCAL)};
    bool is_whole = z->library != NULL && find(z, "zmq_ctx_new", &z->ctx_new) &&
                    find(z, "zmq_ctx_term", &z->ctx_term) && find(z, "zmq_socket", &z->open) &&
                    find(z, "zmq_close", &z->close) && find(z, "zmq_setsockopt", &z->setsockopt) &&
                    find(z, "zmq_bind", &z->bind) && find(z, "zmq_connect", &z->connect) &&
                    find(z, "zmq_send", &z->send) && find(z, "zmq_recv", &z->recv);
    if (!is_whole)
        return -ENOSYS;
    z->context = z->ctx_new();
    z->socket = z->context != NULL ? z->open(z->context, type) : NULL;
    bool is_set = z->socket != NULL && set(z, ZMQ_SNDHWM, (int)config->high_water_mark) == 0 &&
                  set(z, ZMQ_RCVHWM, (int)config->high_water_mark) == 0 &&
                  set(z, ZMQ_RCVTIMEO, (int)(config->patience_ns / 1000000)) == 0;
    if (is_set && type == ZMQ_XPUB)
        is_set = set(z, ZMQ_XPUB_NODROP, 1) == 0;
    if (is_set && type == ZMQ_SUB)
        is_set = z->setsockopt(z->socket, ZMQ_SUBSCRIBE, "", 0) == 0;
    return is_set ? 0 : -EPROTO;
}

static int send_stream(zmq *z, const um_peer_zmq_config *config, um_peer_zmq_result *result)
{
    uint8_t subscription[64];
    if (config->is_published && z->recv(z->socket, subscription, sizeof subscription, 0) < 0)
        return -ETIMEDOUT;
    uint8_t *message = calloc(1, config->message_bytes);
    if (message == NULL)
        return -ENOMEM;
    int64_t begun_ns = um_clock_ns(), begun_cpu_ns = cpu_ns(), now_ns = begun_ns;
    int failed = 0;
    while (failed == 0 && now_ns - begun_ns < config->duration_ns) {
        for (int i = 0; i < LOOKS_AT_CLOCK_EVERY && failed == 0; i++, result->messages++)
            failed = z->send(z->socket, message, config->message_bytes, 0) < 0 ? -EPROTO : 0;
        now_ns = um_clock_ns();
    }
    result->elapsed_ns = now_ns - begun_ns;
    result->cpu_ns = cpu_ns() - begun_cpu_ns;
    if (failed == 0)
        failed = z->send(z->socket, message, 1, 0) < 0 ? -EPROTO : 0;
    free(message);
    return failed;
}

int um_peer_zmq_send(const char *library, const char *endpoint, const um_peer_zmq_config *config,
                     um_peer_zmq_result *result)
{
    zmq z;
    *result = (um_peer_zmq_result){0};
    int failed = open_socket(&z, library, config->is_published ? ZMQ_XPUB : ZMQ_PUSH, config);
    if (failed == 0)
        failed = z.bind(z.socket, endpoint) != 0 ? -EPROTO : send_stream(&z, config, result);
    shut(&z);
    return failed;
}

static int receive_stream(zmq *z, const um_peer_zmq_config *config, um_peer_zmq_result *result)
{
    uint8_t *message = malloc(config->message_bytes);
    if (message == NULL)
        return -ENOMEM;
    int got = z->recv(z->socket, message, config->message_bytes, 0);
    int64_t begun_ns = um_clock_ns(), begun_cpu_ns = cpu_ns();
    while (got >= 0 && got != 1) {
        got = z->recv(z->socket, message, config->message_bytes, 0);
        result->messages += got == (int)config->message_bytes;
    }
    result->elapsed_ns = um_clock_ns() - begun_ns;
    result->cpu_ns = cpu_ns() - begun_cpu_ns;
    result->end_seen = got == 1;
    free(message);
    return 0;
}

int um_peer_zmq_receive(const char *library, const char *endpoint, const um_peer_zmq_config *config,
                        um_peer_zmq_result *result)
{
    zmq z;
    *result = (um_peer_zmq_result){0};
    int failed = open_socket(&z, library, config->is_published ? ZMQ_SUB : ZMQ_PULL, config);
    if (failed == 0)
        failed = z.connect(z.socket, endpoint) != 0 ? -EPROTO : receive_stream(&z, config, result);
    shut(&z);
    return failed;
}
