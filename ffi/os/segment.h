/* Memory shared by two processes: an anonymous file whose size is sealed, so that no holder of its descriptor can
 * shrink it below another's mapping. Any thread. Errors: negative errno.
 */
#ifndef UM_OS_SEGMENT_H
#define UM_OS_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct um_segment {
    void *memory; /* NULL: none */
    size_t bytes;
    int fd; /* of the creator; -1: closed */
} um_segment;

/* Creates zeroed memory and maps it for writing. is_read_only: other holders of the descriptor can only read. */
int um_segment_create(um_segment *segment, const char *name, size_t bytes, bool is_read_only);
/* Maps a segment that another process created, and closes the descriptor in any case. -EPROTO if its size is not
 * `bytes`, or not sealed. */
int um_segment_attach(um_segment *segment, int fd, size_t bytes, bool is_writable);
/* Closes the descriptor; the mapping stays. */
void um_segment_close_descriptor(um_segment *segment);
void um_segment_close(um_segment *segment);

#endif
