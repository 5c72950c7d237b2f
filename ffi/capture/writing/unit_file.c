#include "capture/writing/unit_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

enum {
    UNIT_MEMORY_BYTES = UM_FILE_UNIT_BYTES + UM_FILE_RECORD_MAX_BYTES,
    MEMORY_BYTES = UM_FILE_UNIT_COUNT * UNIT_MEMORY_BYTES,
};

static uint8_t *memory_of(const um_unit_file *file, uint64_t unit)
{
    return file->memory + unit % UM_FILE_UNIT_COUNT * UNIT_MEMORY_BYTES;
}

/* ---- opening ---- */

static int open_fds(um_unit_file *file, const char *path)
{
    struct stat status;
    file->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file->fd < 0)
        return -errno;
    file->has_offsets = fstat(file->fd, &status) == 0 && S_ISREG(status.st_mode);
    if (file->has_offsets)
        file->direct_fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return 0;
}

static void close_fds(um_unit_file *file)
{
    if (close(file->fd) != 0 && file->error == 0)
        file->error = -errno;
    if (file->direct_fd >= 0)
        close(file->direct_fd);
}

int um_unit_file_open(um_unit_file *file, const char *path)
{
    *file = (um_unit_file){.fd = -1, .direct_fd = -1, .is_leaving_cache = true};
    int result = open_fds(file, path);
    if (result != 0)
        return result;
    void *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        close_fds(file);
        return -ENOMEM;
    }
    file->memory = file->unit = memory;
    pthread_mutex_init(&file->lock, NULL);
    pthread_cond_init(&file->changed, NULL);
    return 0;
}

/* ---- writing through the page cache ---- */

/* A capture is not read soon: pages that are on the disk may leave the page cache, which would otherwise keep
 * displacing other memory, first of all pages that are still in the processors' caches. */
static ssize_t write_some(um_unit_file *file, const uint8_t *data, size_t bytes, off_t at)
{
    struct iovec rest = {(void *)(uintptr_t)data, bytes};
    if (file->is_leaving_cache) {
        ssize_t written = pwritev2(file->fd, &rest, 1, at, RWF_DONTCACHE);
        if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS))
            return written;
        file->is_leaving_cache = false; /* an older kernel, or a file system without it */
    }
    return at < 0 ? write(file->fd, data, bytes) : pwrite(file->fd, data, bytes, at);
}

/* `at`: offset in the file, or -1 for its end. */
static int write_cached(um_unit_file *file, const uint8_t *data, size_t bytes, off_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t written = write_some(file, data + done, bytes - done, at < 0 ? at : at + (off_t)done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            return written == 0 ? -EIO : -errno;
    }
    return 0;
}

/* ---- the thread ---- */

/* Writes units directly, with one call. */
static bool write_direct(um_unit_file *file, uint64_t first, uint32_t count)
{
    struct iovec units[UM_FILE_UNIT_COUNT];
    for (uint32_t i = 0; i < count; i++)
        units[i] = (struct iovec){memory_of(file, first + i), UM_FILE_UNIT_BYTES};
    ssize_t bytes = (ssize_t)count * UM_FILE_UNIT_BYTES;
    return pwritev(file->direct_fd, units, (int)count, (off_t)(first * UM_FILE_UNIT_BYTES)) == bytes;
}

/* Writes through the page cache if necessary: the file system may refuse direct writing only now, or a part may have
 * found no space; then the page cache returns the precise error. Returns the number of units written. */
static uint32_t write_units_at(um_unit_file *file, uint64_t first, uint32_t count, bool is_direct, int *error)
{
    uint32_t done = 0;
    if (is_direct && write_direct(file, first, count))
        return count;
    while (done < count && *error == 0) {
        uint64_t unit = first + done;
        *error = write_cached(file, memory_of(file, unit), UM_FILE_UNIT_BYTES, (off_t)(unit * UM_FILE_UNIT_BYTES));
        done += *error == 0;
    }
    return done;
}

/* Writes the waiting units at once; if all units wait, the disk is too slow, and the page cache takes the first one.
 * Called with the lock held, which it releases while writing. */
static void write_waiting(um_unit_file *file)
{
    uint64_t first = file->written_count;
    uint32_t waiting_count = (uint32_t)(file->given_count - first);
    bool is_direct = waiting_count < UM_FILE_UNIT_COUNT - 1;
    uint32_t count = is_direct ? waiting_count : 1;
    int error = file->thread_error;
    pthread_mutex_unlock(&file->lock);
    uint32_t done = error == 0 ? write_units_at(file, first, count, is_direct, &error) : 0;
    pthread_mutex_lock(&file->lock);
    if (done > 0)
        file->written = file->unit_marks[(first + done - 1) % UM_FILE_UNIT_COUNT];
    file->written_count += count;
    file->thread_error = error;
}

static void *write_units(void *argument)
{
    um_unit_file *file = argument;
    pthread_setname_np(pthread_self(), "umstack-file");
    pthread_mutex_lock(&file->lock);
    while (file->written_count < file->given_count || !file->is_ending) {
        if (file->written_count < file->given_count)
            write_waiting(file);
        else
            pthread_cond_wait(&file->changed, &file->lock);
        pthread_cond_broadcast(&file->changed);
    }
    pthread_mutex_unlock(&file->lock);
    return NULL;
}

/* The thread blocks all signals. Returns false if it cannot start; the caller writes then. */
static bool start_thread(um_unit_file *file)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    file->has_thread = pthread_create(&file->thread, NULL, write_units, file) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return file->has_thread;
}

static void end_thread(um_unit_file *file)
{
    pthread_mutex_lock(&file->lock);
    file->is_ending = true;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    if (file->has_thread)
        pthread_join(file->thread, NULL);
}

/* Waits until at most unit_count units are unwritten. */
static void wait_for_thread(um_unit_file *file, uint64_t unit_count)
{
    pthread_mutex_lock(&file->lock);
    while (file->given_count - file->written_count > unit_count)
        pthread_cond_wait(&file->changed, &file->lock);
    if (file->written.bytes > file->flushed.bytes)
        file->flushed = file->written;
    if (file->error == 0)
        file->error = file->thread_error;
    pthread_mutex_unlock(&file->lock);
}

/* ---- filling units ---- */

/* Truncates the file to its complete records; a device cannot be truncated. */
static void give_up(um_unit_file *file)
{
    int ignored = ftruncate(file->fd, (off_t)file->flushed.bytes);
    (void)ignored;
    file->marked = file->flushed;
    file->used_bytes = file->flushed_bytes = 0;
}

/* Passes the unit to the thread; the next unit starts with the bytes behind it. */
static void give_unit(um_unit_file *file)
{
    const uint8_t *full = file->unit;
    size_t rest_bytes = file->used_bytes - UM_FILE_UNIT_BYTES;
    pthread_mutex_lock(&file->lock);
    file->unit_marks[file->given_count % UM_FILE_UNIT_COUNT] = file->in_unit;
    file->given_count++;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    wait_for_thread(file, UM_FILE_UNIT_COUNT - 1);
    file->unit_at += UM_FILE_UNIT_BYTES;
    file->unit = memory_of(file, file->unit_at / UM_FILE_UNIT_BYTES);
    memcpy(file->unit, full + UM_FILE_UNIT_BYTES, rest_bytes);
    file->used_bytes = rest_bytes;
    file->flushed_bytes = 0;
}

/* Returns true if a thread writes whole units. */
static bool has_writer(um_unit_file *file)
{
    if (file->direct_fd >= 0 && !file->has_thread && !start_thread(file)) {
        close(file->direct_fd);
        file->direct_fd = -1;
    }
    return file->has_thread;
}

void um_unit_file_make_space(um_unit_file *file)
{
    if (file->error != 0)
        file->used_bytes = 0;
    if (file->used_bytes < UM_FILE_UNIT_BYTES)
        return;
    if (has_writer(file))
        give_unit(file);
    else
        um_unit_file_flush(file);
    if (file->error != 0)
        give_up(file);
}

void um_unit_file_mark(um_unit_file *file, uint64_t count)
{
    assert(file->used_bytes <= UNIT_MEMORY_BYTES);
    file->marked = (um_file_mark){file->unit_at + file->used_bytes, count};
    if (file->used_bytes <= UM_FILE_UNIT_BYTES)
        file->in_unit = file->marked;
}

/* With direct writing, a partly filled unit is kept and written again when full. */
int um_unit_file_flush(um_unit_file *file)
{
    size_t bytes = file->used_bytes - file->flushed_bytes;
    off_t at = file->has_offsets ? (off_t)(file->unit_at + file->flushed_bytes) : -1;
    wait_for_thread(file, 0);
    if (file->error == 0)
        file->error = write_cached(file, file->unit + file->flushed_bytes, bytes, at);
    if (file->error != 0) {
        give_up(file);
        return file->error;
    }
    file->flushed = file->marked;
    file->flushed_bytes = file->used_bytes;
    if (file->direct_fd < 0) {
        file->unit_at += file->used_bytes;
        file->used_bytes = file->flushed_bytes = 0;
    }
    return 0;
}

int um_unit_file_close(um_unit_file *file)
{
    if (file->memory == NULL)
        return 0;
    um_unit_file_flush(file);
    end_thread(file);
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    munmap(file->memory, MEMORY_BYTES);
    file->memory = NULL;
    close_fds(file);
    return file->error;
}
