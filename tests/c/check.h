/* The test harness: each test is a function with a name and the requirements it proves. It runs in its own process, so
 * that a crash or hang does not end the others. A test program includes this once and ends with
 *
 *   TEST("AE-4", "initial tails") { CHECK_EQ(tail, 0x3ed00000000); }
 *
 * With --list, a program lists its tests as `ITEMS<tab>name` and runs none.
 */
#ifndef UM_TESTS_CHECK_H
#define UM_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_TESTS_MAX = 128, CHECK_SECONDS_MAX = 60 };

typedef struct check_test {
    const char *items;
    const char *name;
    void (*function)(void);
} check_test;

static check_test check_tests[CHECK_TESTS_MAX];
static uint32_t check_test_count;

static inline void check_register(const char *items, const char *name, void (*function)(void))
{
    if (check_test_count == CHECK_TESTS_MAX)
        abort();
    check_tests[check_test_count++] = (check_test){items, name, function};
}

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)
#define TEST(items, name)                                                                                              \
    static void CHECK_JOIN(test_at_line_, __LINE__)(void);                                                             \
    __attribute__((constructor)) static void CHECK_JOIN(register_line_, __LINE__)(void)                                \
    {                                                                                                                  \
        check_register(items, name, CHECK_JOIN(test_at_line_, __LINE__));                                              \
    }                                                                                                                  \
    static void CHECK_JOIN(test_at_line_, __LINE__)(void)

_Noreturn static inline void check_fail(const char *file, int line, const char *what)
{
    printf("    %s:%d: %s\n", file, line, what);
    fflush(stdout);
    _exit(1);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            check_fail(__FILE__, __LINE__, #condition);                                                                \
    } while (0)

static inline void check_equal(const char *file, int line, const char *what, int64_t is, int64_t expected)
{
    if (is == expected)
        return;
    char text[512];
    snprintf(text, sizeof text, "%s is %" PRId64 " (0x%" PRIx64 "), not %" PRId64 " (0x%" PRIx64 ")", what, is,
             (uint64_t)is, expected, (uint64_t)expected);
    check_fail(file, line, text);
}

#define CHECK_EQ(is, expected) check_equal(__FILE__, __LINE__, #is, (int64_t)(is), (int64_t)(expected))

static inline void check_bytes(const char *file, int line, const uint8_t *is, const uint8_t *expected, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (is[i] == expected[i])
            continue;
        char text[128];
        snprintf(text, sizeof text, "byte %zu of %zu is %02x, not %02x", i, length, is[i], expected[i]);
        check_fail(file, line, text);
    }
}

#define CHECK_BYTES(is, expected, length) check_bytes(__FILE__, __LINE__, is, expected, length)

/* The seed of a random test: UM_SEED, or a new one. Printed only when the test fails. */
static inline uint64_t check_seed(void)
{
    const char *given = getenv("UM_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : ((uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)&given);
    printf("    UM_SEED=0x%" PRIx64 "\n", seed);
    return seed;
}

/* Runs one test in a child process and prints one line, preceded by the test's output if it failed. */
static inline int check_run(const check_test *test, const char *program)
{
    int output[2];
    char text[16384];
    size_t text_length = 0;
    if (pipe(output) != 0)
        abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(output[1], STDOUT_FILENO);
        dup2(output[1], STDERR_FILENO);
        close(output[0]);
        close(output[1]);
        alarm(CHECK_SECONDS_MAX);
        test->function();
        exit(0);
    }
    close(output[1]);
    ssize_t got;
    char more[4096];
    while ((got = read(output[0], more, sizeof more)) > 0) {
        size_t space = sizeof text - text_length;
        memcpy(text + text_length, more, (size_t)got < space ? (size_t)got : space);
        text_length += (size_t)got < space ? (size_t)got : space;
    }
    close(output[0]);
    int status;
    waitpid(child, &status, 0);
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %s::%s [%s]\n", passed ? "ok  " : "FAIL", program, test->name, test->items);
    if (!passed)
        printf("%.*s", (int)text_length, text);
    return passed ? 0 : 1;
}

static inline int check_main(int argc, char **argv, const char *program)
{
    int failed = 0;
    for (uint32_t i = 0; i < check_test_count; i++) {
        if (argc > 1 && strcmp(argv[1], "--list") == 0)
            printf("%s\t%s::%s\n", check_tests[i].items, program, check_tests[i].name);
        else if (argc < 2 || strstr(check_tests[i].name, argv[1]) != NULL)
            failed += check_run(&check_tests[i], program);
    }
    return failed > 0;
}

#define CHECK_MAIN                                                                                                     \
    int main(int argc, char **argv)                                                                                    \
    {                                                                                                                  \
        return check_main(argc, argv, strrchr("/" __FILE__, '/') + 1);                                                 \
    }

#endif
