/* The file of a capture: its contents, from either writing thread, and its end after a failed write. Runs under
 * AddressSanitizer and ThreadSanitizer. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "capture/writing/unit_file.h"
#include "check.h"
#include "core/foundation/random.h"

enum {
    RECORDS = 4000,
    RECORD_BYTES_MAX = 20000, /* about forty units in total: several times around the memory */
    SPARSE_RECORDS = 40,
    FILE_LIMIT_BYTES = 10 * UM_FILE_UNIT_BYTES + 12345,
};

typedef struct record_head {
    uint32_t number;
    uint32_t bytes; /* length of the record */
} record_head;

static uint8_t filler(uint32_t number)
{
    return (uint8_t)(number * 37 + 11);
}

static void put_record(um_unit_file *file, um_random *random, uint32_t number)
{
    record_head head = {number, sizeof head + (uint32_t)um_random_below(random, RECORD_BYTES_MAX)};
    um_unit_file_make_space(file);
    memcpy(file->unit + file->used_bytes, &head, sizeof head);
    memset(file->unit + file->used_bytes + sizeof head, filler(number), head.bytes - sizeof head);
    file->used_bytes += head.bytes;
    um_unit_file_mark(file, number + 1);
}

/* Reads the file, which must have complete records only, numbered from 0. Returns their number. */
static uint32_t records_in(const char *path)
{
    static uint8_t body[RECORD_BYTES_MAX];
    FILE *in = fopen(path, "rb");
    CHECK(in != NULL);
    record_head head;
    uint32_t count = 0;
    size_t got;
    while ((got = fread(&head, 1, sizeof head, in)) > 0) {
        CHECK(got == sizeof head && head.number == count && head.bytes < sizeof head + RECORD_BYTES_MAX);
        CHECK(fread(body, 1, head.bytes - sizeof head, in) == head.bytes - sizeof head);
        for (uint32_t i = 0; i < head.bytes - sizeof head; i++)
            CHECK(body[i] == filler(count));
        count++;
    }
    fclose(in);
    return count;
}

/* Creates a file with a unique name on a disk, because a file system in memory may not support direct writing. */
static void open_file(um_unit_file *file, char *path)
{
    strcpy(path, "/var/tmp/um-test-file-XXXXXX");
    CHECK(close(mkstemp(path)) == 0);
    CHECK(um_unit_file_open(file, path) == 0);
}

TEST("", "records are in the file in order, for any timing of units, flushes and the disk")
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        um_random random = {seed};
        um_unit_file file;
        char path[40];
        open_file(&file, path);
        for (uint32_t i = 0; i < RECORDS; i++) {
            put_record(&file, &random, i);
            if (um_random_below(&random, 400) == 0) {
                CHECK(um_unit_file_flush(&file) == 0);
                CHECK(records_in(path) == i + 1);
            }
        }
        CHECK(um_unit_file_close(&file) == 0);
        CHECK(file.flushed.count == RECORDS);
        CHECK(records_in(path) == RECORDS);
        unlink(path);
    }
}

TEST("", "a small file needs no thread and is written by a flush")
{
    um_random random = {7};
    um_unit_file file;
    char path[40];
    open_file(&file, path);
    for (uint32_t i = 0; i < SPARSE_RECORDS; i++) {
        put_record(&file, &random, i);
        CHECK(um_unit_file_flush(&file) == 0);
        CHECK(records_in(path) == i + 1);
    }
    CHECK(!file.has_thread);
    CHECK(um_unit_file_close(&file) == 0);
    CHECK(records_in(path) == SPARSE_RECORDS);
    unlink(path);
}

/* Checks a file that cannot grow: there is an error, and the file ends with the flushed records. */
static void check_cut(um_unit_file *file, const char *path, bool is_flushed_often)
{
    um_random random = {11};
    for (uint32_t i = 0; i < RECORDS; i++) {
        put_record(file, &random, i);
        if (is_flushed_often && i % 50 == 0)
            um_unit_file_flush(file);
    }
    CHECK(um_unit_file_close(file) == -EFBIG);
    struct stat status;
    CHECK(stat(path, &status) == 0);
    CHECK((uint64_t)status.st_size == file->flushed.bytes);
    CHECK(status.st_size <= FILE_LIMIT_BYTES);
    CHECK(status.st_size > FILE_LIMIT_BYTES - 2 * UM_FILE_UNIT_BYTES - RECORD_BYTES_MAX);
    CHECK(records_in(path) == file->flushed.count);
}

TEST("", "a file that cannot grow is truncated to its last complete record")
{
    struct rlimit limit = {FILE_LIMIT_BYTES, FILE_LIMIT_BYTES};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int is_flushed_often = 0; is_flushed_often < 2; is_flushed_often++) {
        um_unit_file file;
        char path[40];
        open_file(&file, path);
        check_cut(&file, path, is_flushed_often);
        unlink(path);
    }
}

/* Checks that all records are in the file, from either writing thread. */
static void check_filled(um_unit_file *file, const char *path)
{
    um_random random = {13};
    for (uint32_t i = 0; i < RECORDS; i++)
        put_record(file, &random, i);
    CHECK(um_unit_file_close(file) == 0);
    CHECK(records_in(path) == RECORDS);
    unlink(path);
}

TEST("", "without direct writing, a file is written through the page cache")
{
    um_unit_file file;
    char path[40];
    open_file(&file, path);
    if (file.direct_fd >= 0)
        close(file.direct_fd);
    file.direct_fd = -1;
    check_filled(&file, path);
    CHECK(!file.has_thread);
}

TEST("", "a refused direct write is repeated through the page cache")
{
    um_unit_file file;
    char path[40];
    open_file(&file, path);
    if (file.direct_fd >= 0) {
        close(file.direct_fd);
        file.direct_fd = open(path, O_RDONLY | O_CLOEXEC); /* writing to it fails */
        CHECK(file.direct_fd >= 0);
    }
    check_filled(&file, path);
}

TEST("", "a full device is reported")
{
    um_random random = {19};
    um_unit_file file;
    CHECK(um_unit_file_open(&file, "/dev/full") == 0);
    for (uint32_t i = 0; i < RECORDS; i++)
        put_record(&file, &random, i);
    CHECK(um_unit_file_close(&file) == -ENOSPC);
    CHECK(file.flushed.count == 0);
}

CHECK_MAIN
