#include "capture/writing/file_series.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char PART_SUFFIX[] = ".part";
enum { NS_PER_US = 1000, NS_PER_S = 1000000000, KEEP_MAX = 4096, STAMP_BYTES = 32 };

static bool fits(const um_file_series_config *config)
{
    size_t most = strlen(config->directory) + 1 + strlen(config->name) + 1 + STAMP_BYTES + strlen(config->suffix) +
                  sizeof PART_SUFFIX;
    return most <= PATH_MAX && strlen(config->name) < NAME_MAX && strlen(config->suffix) < 16;
}

int um_file_series_open(um_file_series *series, const um_file_series_config *config)
{
    *series = (um_file_series){.keep_count = config->keep_count};
    if (!fits(config))
        return -ENAMETOOLONG;
    if (config->keep_count > KEEP_MAX)
        return -EINVAL;
    strcpy(series->directory, config->directory);
    strcpy(series->name, config->name);
    strcpy(series->suffix, config->suffix);
    if (config->keep_count > 0)
        series->kept = calloc(config->keep_count, PATH_MAX);
    return config->keep_count > 0 && series->kept == NULL ? -ENOMEM : 0;
}

static void finish_removing(um_file_series *series)
{
    if (series->is_removing)
        pthread_join(series->remover, NULL);
    series->is_removing = false;
}

void um_file_series_close(um_file_series *series)
{
    finish_removing(series);
    free(series->kept);
    *series = (um_file_series){0};
}

const char *um_file_series_begin(um_file_series *series, int64_t time_ns)
{
    time_t seconds = (time_t)(time_ns / NS_PER_S);
    struct tm date;
    gmtime_r(&seconds, &date);
    char stamp[STAMP_BYTES];
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%S", &date);
    int length = snprintf(series->part, sizeof series->part, "%s/%s-%s.%06dZ%s%s", series->directory, series->name,
                          stamp, (int)(time_ns % NS_PER_S / NS_PER_US), series->suffix, PART_SUFFIX);
    assert(length > 0 && (size_t)length < sizeof series->part);
    return series->part;
}

static void *remove_file(void *argument)
{
    um_file_series *series = argument;
    unlink(series->removed);
    return NULL;
}

/* Adds the file to those kept, and removes the file that it replaces. */
static void keep(um_file_series *series, const char *path)
{
    char *place = series->kept + series->ended_count % series->keep_count * PATH_MAX;
    finish_removing(series);
    strcpy(series->removed, place);
    strcpy(place, path);
    if (series->removed[0] == '\0')
        return;
    series->is_removing = pthread_create(&series->remover, NULL, remove_file, series) == 0;
    if (!series->is_removing)
        unlink(series->removed);
}

int um_file_series_end(um_file_series *series)
{
    char whole[PATH_MAX];
    size_t bytes = strlen(series->part) - (sizeof PART_SUFFIX - 1);
    memcpy(whole, series->part, bytes);
    whole[bytes] = '\0';
    int result = rename(series->part, whole) == 0 ? 0 : -errno;
    series->part[0] = '\0';
    if (series->kept != NULL)
        keep(series, whole);
    series->ended_count++;
    return result;
}

int um_file_series_drop(um_file_series *series)
{
    int result = unlink(series->part) == 0 ? 0 : -errno;
    series->part[0] = '\0';
    return result;
}
