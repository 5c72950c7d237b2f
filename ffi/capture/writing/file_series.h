/* A series of files in a directory, named by their start time: `NAME-20260131T235959.123456Z.SUFFIX`. The current file
 * has ".part" behind that; of the others only the last keep_count are kept.
 *
 * A thread removes files, because removing a large file can block for long on some file systems.
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
    const char *directory; /* must exist */
    const char *name;
    const char *suffix;
    uint32_t keep_count; /* 0: keep all */
} um_file_series_config;

typedef struct um_file_series {
    char directory[PATH_MAX];
    char name[NAME_MAX];
    char suffix[16];
    char part[PATH_MAX]; /* path of the current file; empty: none */
    uint32_t keep_count;
    uint64_t ended_count;
    char *kept; /* ring of the paths kept, PATH_MAX bytes each; NULL: keep all */
    pthread_t remover;
    bool is_removing;
    char removed[PATH_MAX];
} um_file_series;

int um_file_series_open(um_file_series *series, const um_file_series_config *config);
/* A zeroed series is not open and may be closed. */
void um_file_series_close(um_file_series *series);

/* Returns the path of the next file, which the caller creates; valid until the file ends. */
const char *um_file_series_begin(um_file_series *series, int64_t time_ns);
/* The file is complete and closed: gives it its name and removes the oldest. */
int um_file_series_end(um_file_series *series);
/* The file is closed and not needed: removes it. */
int um_file_series_drop(um_file_series *series);

#endif
