/* A file that is appended to, in units of a mebibyte, by a thread of its own and past the page cache (O_DIRECT): a
 * capture of a gigabyte a second is not copied again and does not displace the memory of other programs. When the disk
 * is slower than the capture, units go through the page cache. Where O_DIRECT is not possible (a file system without
 * it, a device, a pipe), the caller's thread writes the units as any file.
 *
 * The caller writes records at `unit + used_bytes`, advances used_bytes, and marks complete records. A file cut short
 * by a crash ends inside a record at most; one that cannot be written any further is cut back to its last mark that is
 * in the file, and what comes after it is discarded.
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
    UM_FILE_UNIT_COUNT = 8,                /* one is filled, some are written, the others wait */
    UM_FILE_RECORD_MAX_BYTES = 256 * 1024, /* a unit's memory is so much longer */
};

/* Up to here the file is whole. */
typedef struct um_file_mark {
    uint64_t bytes;
    uint64_t count; /* of records, as the caller counts them */
} um_file_mark;

typedef struct um_unit_file {
    int fd;
    int direct_fd; /* -1: there is none */
    bool has_offsets;
    bool leaves_cache; /* what is written is dropped from the page cache once it is on the disk */
    uint8_t *memory;
    uint8_t *unit; /* being filled */
    size_t used_bytes;
    size_t flushed_bytes; /* of them, in the file already */
    uint64_t unit_at;     /* where the unit begins in the file */
    um_file_mark marked;  /* the complete records */
    um_file_mark in_unit; /* of it, up to the unit's end */
    um_file_mark flushed; /* what is in the file, as of the last flush */
    int error;
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock; /* all that follows */
    pthread_cond_t changed;
    bool ending;
    uint64_t given_count; /* units, for the thread to write */
    uint64_t written_count;
    um_file_mark unit_marks[UM_FILE_UNIT_COUNT];
    um_file_mark written; /* what the thread has brought into the file */
    int thread_error;
} um_unit_file;

/* Makes the file, or empties one that is there. */
int um_unit_file_open(um_unit_file *file, const char *path);
/* Makes space for a record of UM_FILE_RECORD_MAX_BYTES; waits for the disk if need be. */
void um_unit_file_make_space(um_unit_file *file);
/* What was written to the unit so far is whole. */
void um_unit_file_mark(um_unit_file *file, uint64_t count);
/* Writes the complete records to the file. Returns the first error there was. */
int um_unit_file_flush(um_unit_file *file);
/* Flushes and closes. Returns the first error there was. */
int um_unit_file_close(um_unit_file *file);

#endif
