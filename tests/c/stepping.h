/* Parties of a simulation that are interrupted between machine instructions: threads of which exactly one runs at a
 * time, in an order that a seed decides. A party that is killed runs no further instruction, as after kill -9: what it
 * had stored stays, what it would have stored does not come.
 *
 *   scheduler:  step_start() --> step_turn() each time a party shall continue --> step_kill(), or its program returns
 *   party:      code under STEPPED(...) releases its turn after the instructions that the scheduler granted;
 *               step_pause() does so between operations; step_park() waits for step_wake()
 *
 * The processor traps after each instruction (x86-64's trap flag). On other processors parties are interrupted only
 * between operations. Parties run in turns, so all of them see each store at once: reordered stores are the subject of
 * the tests under ThreadSanitizer.
 *
 * Killed parties do not free memory: what a party owns is reachable from outside of its stack.
 */
#ifndef UM_TESTS_STEPPING_H
#define UM_TESTS_STEPPING_H

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include "check.h"

enum {
    STEP_TRAPS_MAX = 1500, /* of one operation; the rest of it, such as a long copy, is not interrupted */
    STEP_OPERATION = 40,   /* instructions that step_pause counts for */
};

typedef struct party {
    void (*program)(void *argument);
    void *argument;
    pthread_t thread;
    sem_t turn;
    sigjmp_buf end;
    int64_t granted; /* instructions until it releases its turn */
    uint32_t traps;  /* of the present operation */
    uint32_t wakes;  /* not taken yet */
    bool is_alive;
    bool is_parked;
    bool is_killed;
    bool is_inside;  /* of an operation that is interrupted */
    bool is_stepped; /* the next operation is interrupted; the scheduler decides */
} party;

static _Thread_local party *step_self;
static sem_t step_released;
static uint64_t step_trap_count;

static void step_wait(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0)
        CHECK_EQ(errno, EINTR);
}

static void step_release_turn(void)
{
    sem_post(&step_released);
    step_wait(&step_self->turn);
    if (step_self->is_killed)
        siglongjmp(step_self->end, 1);
}

/* Called between two operations. */
static void step_pause(void)
{
    step_self->granted -= STEP_OPERATION;
    if (step_self->granted <= 0)
        step_release_turn();
}

/* Waits until the party has been woken since it last took its wake-ups. */
static void step_park(void)
{
    step_self->is_parked = true;
    step_release_turn();
    step_self->is_parked = false;
    step_self->wakes = 0;
}

static void step_wake(party *one)
{
    one->wakes++;
}

#if defined(__x86_64__)
enum { STEP_TRAP_FLAG = 0x100 };

static void step_on_trap(int number, siginfo_t *information, void *context)
{
    int error = errno;
    (void)number, (void)information;
    step_trap_count++;
    if (++step_self->traps == STEP_TRAPS_MAX)
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~STEP_TRAP_FLAG;
    if (--step_self->granted <= 0)
        step_release_turn();
    errno = error;
}

#define STEP_SET_FLAG(is_set)                                                                                          \
    __builtin_ia32_writeeflags_u64((__builtin_ia32_readeflags_u64() & ~(uint64_t)STEP_TRAP_FLAG) |                     \
                                   ((is_set) ? (uint64_t)STEP_TRAP_FLAG : 0))
#else
#define STEP_SET_FLAG(is_set) ((void)(is_set))
#endif

/* Runs an operation of the party, interrupted between its instructions if the scheduler chose to. */
#define STEPPED(operation)                                                                                             \
    do {                                                                                                               \
        step_self->traps = 0;                                                                                          \
        step_self->is_inside = true;                                                                                   \
        STEP_SET_FLAG(step_self->is_stepped);                                                                          \
        operation;                                                                                                     \
        STEP_SET_FLAG(false);                                                                                          \
        step_self->is_inside = false;                                                                                  \
    } while (0)

static void *step_main(void *argument)
{
    step_self = argument;
    step_wait(&step_self->turn);
    if (!step_self->is_killed && sigsetjmp(step_self->end, 0) == 0)
        step_self->program(step_self->argument);
    step_self->is_alive = false;
    sem_post(&step_released);
    return NULL;
}

/* ---- the scheduler ---- */

static void step_init(void)
{
    CHECK_EQ(sem_init(&step_released, 0, 0), 0);
#if defined(__x86_64__)
    struct sigaction action = {.sa_sigaction = step_on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
#endif
}

static void step_start(party *one, void (*program)(void *), void *argument)
{
    *one = (party){.program = program, .argument = argument, .is_alive = true};
    CHECK_EQ(sem_init(&one->turn, 0, 0), 0);
    CHECK_EQ(pthread_create(&one->thread, NULL, step_main, one), 0);
}

static bool step_can_run(const party *one)
{
    return one->is_alive && (!one->is_parked || one->wakes > 0);
}

/* Lets a party run for about this many instructions. */
static void step_turn(party *one, uint32_t instructions, bool is_stepped)
{
    one->granted = instructions;
    one->is_stepped = is_stepped;
    sem_post(&one->turn);
    step_wait(&step_released);
}

static void step_kill(party *one)
{
    one->is_killed = true;
    if (one->is_alive)
        step_turn(one, 1, false);
    CHECK_EQ(pthread_join(one->thread, NULL), 0);
    CHECK_EQ(sem_destroy(&one->turn), 0);
}

#endif
