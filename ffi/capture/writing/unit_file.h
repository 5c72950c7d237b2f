/* A file that a separate thread appends to in units of one mebibyte, bypassing the page cache (O_DIRECT): a capture of
 * a gigabyte per second is not copied again and does not evict the memory of other programs. If the disk is slower than
 * the capture, units go through the page cache. Without O_DIRECT (a file system without it, a device, a pipe), the
 * caller's thread writes the units.
 *
 * The caller writes records at `unit + used_bytes`, advances used_bytes, and marks complete records. A file cut short
 * by a crash ends inside a record at most; after a failed write, the file is truncated to the last mark in it, and
 * later records are discarded.
 *
 * Threads: one at a time. Memory: mapped by _open, unmapped by _close. Errors: 0 or a negative errno; the first one is
 * remembered. System calls: open, fstat, pwritev2, pwrite, write, ftruncate, close, mmap, clone, futex.
 */
#ifndef UM_CAPTURE_WRITING_UNIT_FILE_H
#define UM_CAPTURE_WRITING_UNIT_FILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UM_FILE_UNIT_BYTES = 1 << 20,
    UM_FILE_UNIT_COUNT = 8,                /* one being filled, some being written, the others waiting */
    UM_FILE_RECORD_MAX_BYTES = 256 * 1024, /* extra memory of a unit */
};

/* A position up to which the file has complete records. */
typedef struct um_file_mark {
    uint64_t bytes;
    uint64_t count; /* records, as the caller counts them */
} um_file_mark;

typedef struct um_unit_file {
    int fd;
    int direct_fd; /* -1: none */
    bool has_offsets;
    bool is_leaving_cache; /* pages leave the page cache once they are on the disk */
    uint8_t *memory;
    uint8_t *unit; /* the unit being filled */
    size_t used_bytes;
    size_t flushed_bytes; /* bytes of these already in the file */
    uint64_t unit_at;     /* offset of the unit in the file */
    um_file_mark marked;  /* end of the complete records */
    um_file_mark in_unit; /* the last mark in the unit */
    um_file_mark flushed; /* end of the records in the file at the last flush */
    int error;
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock; /* protects all that follows */
    pthread_cond_t changed;
    bool is_ending;
    uint64_t given_count; /* units passed to the thread */
    uint64_t written_count;
    um_file_mark unit_marks[UM_FILE_UNIT_COUNT];
    um_file_mark written; /* end of the records that the thread has written */
    int thread_error;
} um_unit_file;

/* Creates the file, or truncates an existing one. */
int um_unit_file_open(um_unit_file *file, const char *path);
/* Makes space for a record of UM_FILE_RECORD_MAX_BYTES; waits for the disk if necessary. */
void um_unit_file_make_space(um_unit_file *file);
/* Marks the records written to the unit so far as complete. */
void um_unit_file_mark(um_unit_file *file, uint64_t count);
/* Writes the complete records to the file. Returns the first error. */
int um_unit_file_flush(um_unit_file *file);
/* Flushes and closes. Returns the first error. */
int um_unit_file_close(um_unit_file *file);

#endif
