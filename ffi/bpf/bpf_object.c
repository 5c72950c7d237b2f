#include "bpf/bpf_object.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BPF_F_XDP_DEV_BOUND_ONLY
#define BPF_F_XDP_DEV_BOUND_ONLY (1U << 6)
#endif

#define PROGRAM_MAPS_MAX 64

/* libbpf reports through one callback per process; this is the log of the thread that is loading. */
struct log_listener {
    char *text;
    size_t capacity_bytes;
    size_t used_bytes;
};

static _Thread_local struct log_listener *listener;
static libbpf_print_fn_t print_before;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;

/* Appends, and drops the oldest bytes if the log is full: the verifier's verdict is at the end. */
static void remember(struct log_listener *log, const char *message, size_t message_bytes)
{
    size_t space_bytes = log->capacity_bytes - 1;
    size_t retained_bytes = log->used_bytes;

    if (message_bytes > space_bytes) {
        message += message_bytes - space_bytes;
        message_bytes = space_bytes;
    }
    if (retained_bytes > space_bytes - message_bytes)
        retained_bytes = space_bytes - message_bytes;
    memmove(log->text, log->text + log->used_bytes - retained_bytes, retained_bytes);
    memcpy(log->text + retained_bytes, message, message_bytes);
    log->used_bytes = retained_bytes + message_bytes;
    log->text[log->used_bytes] = '\0';
}

__attribute__((format(printf, 2, 0))) static int capture(enum libbpf_print_level level, const char *format,
                                                         va_list arguments)
{
    char *message = NULL;
    int message_bytes;

    if (!listener)
        return print_before ? print_before(level, format, arguments) : 0;
    if (level == LIBBPF_DEBUG)
        return 0;
    message_bytes = vasprintf(&message, format, arguments);
    if (message_bytes < 0)
        return 0;
    remember(listener, message, (size_t)message_bytes);
    free(message);
    return message_bytes;
}

/* Called before each load, because other users of libbpf in the process (such as bcc) set the callback too. */
static void start_capture(void)
{
    libbpf_print_fn_t before;

    pthread_mutex_lock(&print_lock);
    before = libbpf_set_print(capture);
    if (before != capture)
        print_before = before;
    pthread_mutex_unlock(&print_lock);
}

static int keep_one_program(struct bpf_object *object, const char *name)
{
    struct bpf_program *program;

    if (!bpf_object__find_program_by_name(object, name))
        return -ENOENT;
    bpf_object__for_each_program(program, object)
    {
        int error = bpf_program__set_autoload(program, strcmp(bpf_program__name(program), name) == 0);

        if (error)
            return error;
    }
    return 0;
}

/* Binds the program to a device; it still runs on the host (Linux 6.3). */
static int bind_to_device(struct bpf_object *object, const char *name, uint32_t device_index)
{
    struct bpf_program *program = bpf_object__find_program_by_name(object, name);

    bpf_program__set_ifindex(program, device_index);
    return bpf_program__set_flags(program, bpf_program__flags(program) | BPF_F_XDP_DEV_BOUND_ONLY);
}

static int apply(struct bpf_object *object, const struct xdp_bpf_load_options *options)
{
    int error = 0;

    if (options && options->program_name)
        error = keep_one_program(object, options->program_name);
    if (!error && options && options->program_name && options->device_index)
        error = bind_to_device(object, options->program_name, options->device_index);
    for (uint32_t i = 0; !error && options && i < options->map_size_count; i++) {
        struct bpf_map *map = bpf_object__find_map_by_name(object, options->map_sizes[i].map_name);

        error = map ? bpf_map__set_max_entries(map, options->map_sizes[i].max_entries) : -ENOENT;
    }
    return error;
}

/* Returns an error code for every failure, however the installed libbpf reports a bad pointer. */
static int open_and_load(const char *path, const struct xdp_bpf_load_options *options, struct bpf_object **object)
{
    struct bpf_object *opened;
    int error;

    errno = 0;
    opened = bpf_object__open_file(path, NULL);
    error = (int)libbpf_get_error(opened);
    if (error)
        return error;
    error = apply(opened, options);
    if (!error)
        error = bpf_object__load(opened);
    if (error) {
        bpf_object__close(opened);
        return error;
    }
    *object = opened;
    return 0;
}

int xdp_bpf_object_load(const char *path, const struct xdp_bpf_load_options *options, struct bpf_object **object,
                        char *log, size_t log_bytes)
{
    struct log_listener mine = {.text = log, .capacity_bytes = log_bytes};
    int error;

    if (!path || !object || !log || log_bytes == 0)
        return -EINVAL;
    log[0] = '\0';
    start_capture();
    listener = &mine;
    error = open_and_load(path, options, object);
    listener = NULL;
    return error;
}

void xdp_bpf_object_close(struct bpf_object *object)
{
    bpf_object__close(object);
}

int xdp_bpf_program_fd(const struct bpf_object *object, const char *name)
{
    const struct bpf_program *program = bpf_object__find_program_by_name(object, name);

    return program ? bpf_program__fd(program) : -ENOENT;
}

int xdp_bpf_map_fd(const struct bpf_object *object, const char *name)
{
    const struct bpf_map *map = bpf_object__find_map_by_name(object, name);

    return map ? bpf_map__fd(map) : -ENOENT;
}

int xdp_bpf_program_fd_by_id(uint32_t program_id)
{
    int fd = bpf_prog_get_fd_by_id(program_id);

    return fd < 0 ? -errno : fd;
}

int xdp_bpf_program_describe(int program_fd, struct xdp_bpf_program_facts *facts)
{
    struct bpf_prog_info info = {0};
    __u32 info_bytes = sizeof(info);

    if (bpf_obj_get_info_by_fd(program_fd, &info, &info_bytes))
        return -errno;
    *facts = (struct xdp_bpf_program_facts){.program_id = info.id, .owner_uid = info.created_by_uid};
    _Static_assert(sizeof(facts->name) == sizeof(info.name), "the kernel's names fit");
    memcpy(facts->name, info.name, sizeof(facts->name));
    return 0;
}

/* Returns a descriptor of the map if it has this name, else -ENOENT. */
static int map_fd_if_named(uint32_t map_id, const char *name)
{
    struct bpf_map_info info = {0};
    __u32 info_bytes = sizeof(info);
    int error = -ENOENT;
    int fd = bpf_map_get_fd_by_id(map_id);

    if (fd < 0)
        return -errno;
    if (bpf_obj_get_info_by_fd(fd, &info, &info_bytes))
        error = -errno;
    else if (strncmp(info.name, name, sizeof(info.name) - 1) == 0)
        return fd;
    close(fd);
    return error;
}

int xdp_bpf_program_map_fd(int program_fd, const char *map_name)
{
    __u32 map_ids[PROGRAM_MAPS_MAX];
    struct bpf_prog_info info = {.nr_map_ids = PROGRAM_MAPS_MAX, .map_ids = (uintptr_t)map_ids};
    __u32 info_bytes = sizeof(info);

    if (bpf_obj_get_info_by_fd(program_fd, &info, &info_bytes))
        return -errno;
    for (__u32 i = 0; i < info.nr_map_ids && i < PROGRAM_MAPS_MAX; i++) {
        int fd = map_fd_if_named(map_ids[i], map_name);

        if (fd != -ENOENT)
            return fd;
    }
    return -ENOENT;
}
