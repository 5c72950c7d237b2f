#include "os/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

static int map(um_segment *segment, size_t bytes, int protection)
{
    void *memory = mmap(NULL, bytes, protection, MAP_SHARED | MAP_NORESERVE, segment->fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    segment->memory = memory;
    segment->bytes = bytes;
    return 0;
}

int um_segment_create(um_segment *segment, const char *name, size_t bytes, bool is_read_only)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (is_read_only ? F_SEAL_FUTURE_WRITE : 0);
    *segment = (um_segment){.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (segment->fd < 0)
        return -errno;
    int result = ftruncate(segment->fd, (off_t)bytes) == 0 ? 0 : -errno;
    if (result == 0)
        result = map(segment, bytes, PROT_READ | PROT_WRITE);
    if (result == 0 && fcntl(segment->fd, F_ADD_SEALS, seals) != 0)
        result = -errno;
    if (result != 0)
        um_segment_close(segment);
    return result;
}

int um_segment_attach(um_segment *segment, int fd, size_t bytes, bool is_writable)
{
    struct stat status;
    *segment = (um_segment){.fd = fd};
    int seals = fcntl(fd, F_GET_SEALS); /* -1: no memory file */
    bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
    bool is_right = is_sealed && fstat(fd, &status) == 0 && (size_t)status.st_size == bytes;
    int result = is_right ? map(segment, bytes, PROT_READ | (is_writable ? PROT_WRITE : 0)) : -EPROTO;
    um_segment_close_descriptor(segment);
    return result;
}

void um_segment_close_descriptor(um_segment *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

void um_segment_close(um_segment *segment)
{
    if (segment->memory != NULL)
        munmap(segment->memory, segment->bytes);
    um_segment_close_descriptor(segment);
    segment->memory = NULL;
}
