/* A series of files in a directory, named by when each was begun: `NAME-20260131T235959.123456Z.SUFFIX`. The one that
 * is being written has ".part" behind that; of the others only the last keep_count are kept.
 *
 * Removing a large file blocks for long on some file systems: a thread does it.
 *
 * Threads: one at a time. Memory: allocated by um_file_series_open, freed by _close. Errors: 0 or a negative errno.
 */
#ifndef UM_CAPTURE_WRITING_FILE_SERIES_H
#define UM_CAPTURE_WRITING_FILE_SERIES_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct um_file_series_config {
    const char *directory; /* which is there */
    const char *name;
    const char *suffix;
    uint32_t keep_count; /* 0: all are kept */
} um_file_series_config;

typedef struct um_file_series {
    char directory[PATH_MAX];
    char name[NAME_MAX];
    char suffix[16];
    char part[PATH_MAX]; /* the file that is being written; empty: there is none */
    uint32_t keep_count;
    uint64_t ended_count;
    char *kept; /* the paths of those that are kept, of the size of PATH_MAX each, a ring; NULL: all are kept */
    pthread_t remover;
    bool is_removing;
    char removed[PATH_MAX];
} um_file_series;

int um_file_series_open(um_file_series *series, const um_file_series_config *config);
/* One that is all zero was never open. */
void um_file_series_close(um_file_series *series);

/* The path of the next file; valid until it is ended. The caller creates the file. */
const char *um_file_series_begin(um_file_series *series, int64_t time_ns);
/* The file is whole and closed: it gets its name, and the oldest goes. */
int um_file_series_end(um_file_series *series);
/* The file is closed and not needed: it is removed. */
int um_file_series_drop(um_file_series *series);

#endif
