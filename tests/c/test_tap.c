/* The tap's ring with many producers, and the file written from it. Runs under AddressSanitizer and ThreadSanitizer. */
#include <dirent.h>
#include <limits.h>
#include <pthread.h>

#include "capture/writing/datagram_frame.h"
#include "capture/writing/tap.h"
#include "check.h"
#include "core/foundation/random.h"

#ifdef UM_FEWER_ROUNDS /* ThreadSanitizer is ten times slower */
enum { DATAGRAMS = 5000 };
#else
enum { DATAGRAMS = 50000 };
#endif
enum { THREADS = 3, BODY_MAX = 1400, RING_BYTES = 1 << 20, BLOCK_PACKET = 6, RUN_MAX = 8 };

typedef struct producer {
    pthread_t thread;
    um_tap *tap;
    uint32_t number;
} producer;

static uint8_t filler(uint32_t number, uint32_t count)
{
    return (uint8_t)(count * 7 + number * 61 + 1);
}

static void fill(uint8_t *body, uint32_t length, uint32_t number, uint32_t count)
{
    memcpy(body, &number, 4);
    memcpy(body + 4, &count, 4);
    memset(body + 8, filler(number, count), length - 8);
}

static um_address address_of(uint32_t number)
{
    return um_address_of_v4(0x0a000001 + number, (uint16_t)(1000 + number));
}

/* Appends single datagrams, and sometimes a coalesced run with a shorter last datagram. */
static void *produce(void *argument)
{
    producer *p = argument;
    um_random random = {p->number};
    uint8_t body[BODY_MAX * RUN_MAX];
    um_address to = um_address_of_v4(0xe00a0a0a, 14400);
    for (uint32_t i = 0; i < DATAGRAMS;) {
        uint32_t length = 9 + (uint32_t)um_random_below(&random, BODY_MAX - 9);
        uint32_t run = i % 10 == 0 && i + RUN_MAX <= DATAGRAMS ? RUN_MAX : 1;
        for (uint32_t j = 0; j < run; j++)
            fill(body + j * length, length - (j > 0 && j == run - 1), p->number, i + j);
        um_rx rx = {.data = body,
                    .length = run * length - (run > 1),
                    .segment_length = run > 1 ? length : 0,
                    .from = address_of(p->number),
                    .to = to,
                    .received_ns = i};
        um_tap_received(p->tap, &rx, 1);
        i += run;
    }
    return NULL;
}

static void start_producers(um_tap *tap, producer *producers)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        producers[i] = (producer){.tap = tap, .number = i};
        CHECK(pthread_create(&producers[i].thread, NULL, produce, &producers[i]) == 0);
    }
}

static void join_producers(producer *producers)
{
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(producers[i].thread, NULL);
}

static bool checksums_are_right(const uint8_t *ip, uint32_t length)
{
    uint32_t udp_bytes = length - UM_IPV4_HEADER_BYTES;
    return um_internet_checksum(um_internet_sum(ip, UM_IPV4_HEADER_BYTES, 0)) == 0 &&
           um_internet_checksum(
               um_internet_sum(ip + UM_IPV4_HEADER_BYTES, udp_bytes, um_internet_pseudo_sum(ip, udp_bytes))) == 0;
}

/* Checks the packets of a file in this machine's byte order: each is complete, and those of a producer are in order. */
static uint64_t check_file(const char *path)
{
    int64_t last[THREADS] = {-1, -1, -1};
    uint64_t packets = 0;
    uint32_t head[2];
    static uint8_t block[1 << 17];
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    while (fread(head, sizeof head, 1, file) == 1) {
        CHECK(head[1] >= 12 && head[1] <= sizeof block);
        CHECK(fread(block, head[1] - sizeof head, 1, file) == 1);
        if (head[0] != BLOCK_PACKET)
            continue;
        uint32_t captured, wire, number, count;
        memcpy(&captured, block + 12, 4);
        memcpy(&wire, block + 16, 4);
        CHECK(captured == wire && captured >= UM_IPV4_UDP_HEADER_BYTES + 8);
        const uint8_t *ip = block + 20, *body = ip + UM_IPV4_UDP_HEADER_BYTES;
        CHECK(um_load_be16(ip + 2) == wire);
        CHECK(checksums_are_right(ip, wire));
        memcpy(&number, body, 4);
        memcpy(&count, body + 4, 4);
        CHECK(number < THREADS && count < DATAGRAMS);
        CHECK(um_load_be32(ip + 12) == um_ip_v4(address_of(number).ip));
        CHECK(last[number] < (int64_t)count);
        last[number] = count;
        for (uint32_t i = 8; i < wire - UM_IPV4_UDP_HEADER_BYTES; i++)
            CHECK(body[i] == filler(number, count));
        packets++;
    }
    fclose(file);
    return packets;
}

TEST("W6", "a tap with several producers writes each datagram whole, in its producer's order, and counts lost ones")
{
    char path[] = "/tmp/um-test-tap-XXXXXX";
    CHECK(close(mkstemp(path)) == 0);
    um_tap *tap = aligned_alloc(UM_CACHE_LINE_BYTES, um_align_up(sizeof *tap, UM_CACHE_LINE_BYTES));
    memset(tap, 0, sizeof *tap);
    um_tap_config config = {.path = path, .interface = "test0", .ring_bytes = RING_BYTES, .ttl = 16};
    um_tap_counters counters;
    for (int round = 0; round < 2; round++) { /* a tap can be started again */
        producer producers[THREADS];
        CHECK(um_tap_start(tap, &config) == 0);
        CHECK(um_tap_start(tap, &config) == -EBUSY);
        start_producers(tap, producers);
        join_producers(producers);
        CHECK(um_tap_stop(tap, &counters) == 0);
        CHECK(counters.written_count + counters.dropped_count == (uint64_t)THREADS * DATAGRAMS);
        CHECK(counters.written_count > 0);
        CHECK(check_file(path) == counters.written_count);
    }
    unlink(path);
    free(tap);
}

TEST("W6", "a tap stopped while producers run writes all accepted datagrams, and accepts no more")
{
    char path[] = "/tmp/um-test-tap-XXXXXX";
    CHECK(close(mkstemp(path)) == 0);
    um_tap *tap = aligned_alloc(UM_CACHE_LINE_BYTES, um_align_up(sizeof *tap, UM_CACHE_LINE_BYTES));
    memset(tap, 0, sizeof *tap);
    um_tap_config config = {.path = path, .interface = "test0", .ring_bytes = RING_BYTES, .ttl = 16};
    um_tap_counters counters, later;
    CHECK(um_tap_start(tap, &config) == 0);
    producer producers[THREADS];
    start_producers(tap, producers);
    do
        um_tap_read(tap, &counters);
    while (counters.written_count < 100);
    CHECK(um_tap_stop(tap, &counters) == 0);
    CHECK(check_file(path) == counters.written_count);
    join_producers(producers);
    um_tap_read(tap, &later);
    CHECK(later.written_count == counters.written_count && later.dropped_count == counters.dropped_count);
    unlink(path);
    free(tap);
}

/* Counts and checks the datagrams in the complete files of a directory, then removes the directory. */
static uint64_t check_series(const char *directory, uint32_t *file_count)
{
    DIR *files = opendir(directory);
    CHECK(files != NULL);
    uint64_t datagrams = 0;
    *file_count = 0;
    for (struct dirent *file; (file = readdir(files)) != NULL;) {
        char path[PATH_MAX];
        if (file->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, file->d_name);
        CHECK(strncmp(file->d_name, "series-2", 8) == 0 && strcmp(strrchr(file->d_name, '.'), ".pcapng") == 0);
        datagrams += check_file(path);
        ++*file_count;
        unlink(path);
    }
    closedir(files);
    rmdir(directory);
    return datagrams;
}

TEST("W6", "a tap's series has all datagrams written, in files of the configured size, or only the last files")
{
    enum { KEPT = 3, FILE_BYTES = 1 << 20 };
    um_tap *tap = aligned_alloc(UM_CACHE_LINE_BYTES, um_align_up(sizeof *tap, UM_CACHE_LINE_BYTES));
    memset(tap, 0, sizeof *tap);
    for (uint32_t keep_files = 0; keep_files <= KEPT; keep_files += KEPT) {
        char directory[] = "/tmp/um-test-taps-XXXXXX";
        CHECK(mkdtemp(directory) != NULL);
        um_tap_config config = {.path = directory,
                                .file_name = "series",
                                .rotate_bytes = FILE_BYTES,
                                .keep_files = keep_files,
                                .interface = "test0",
                                .ring_bytes = RING_BYTES,
                                .ttl = 16};
        um_tap_counters counters;
        producer producers[THREADS];
        CHECK(um_tap_start(tap, &config) == 0);
        start_producers(tap, producers);
        join_producers(producers);
        CHECK(um_tap_stop(tap, &counters) == 0);
        CHECK(counters.written_count + counters.dropped_count == (uint64_t)THREADS * DATAGRAMS);
        CHECK(counters.file_count >= counters.file_bytes / (FILE_BYTES + BODY_MAX * RUN_MAX * 2) + 1);
        uint32_t file_count;
        uint64_t there = check_series(directory, &file_count);
        if (keep_files == 0)
            CHECK(file_count == counters.file_count && there == counters.written_count);
        else
            CHECK(file_count == (counters.file_count < KEPT ? counters.file_count : KEPT));
    }
    free(tap);
}

CHECK_MAIN
