/* A driver and its clients as parties around shared logs, killed at any instruction and partly hostile.
 *
 *   client 1: log 1 ---> driver, client 2        driver: log 0 ---> clients 1, 2, 3
 *   client 2: log 2 ---> driver, client 3        It copies each record of the clients' logs into log 0.
 *   client 3: log 3 ---> driver, client 1
 *
 * The parties run the product's log (core/ipc/shared_log.h) in an order that a seed decides, instruction by
 * instruction (stepping.h). Control sockets are modelled: attaching, waking, and closing, which the kernel does for a
 * killed process. A hostile client overwrites what it may write, its log and its pages, at any time.
 *
 * Checked: a record comes out whole, once and in order; a log of a killed writer ends after its last committed record;
 * nobody waits for the dead; only hostile parties are cut off; all memory is freed.
 *
 * UM_SEED repeats a run, UM_ROUNDS=100000 is a long one.
 */
#include "core/foundation/random.h"
#include "core/ipc/shared_log.h"
#include "stepping.h"
#include "support.h"

enum {
    DRIVER = 0,
    PARTIES = 4,
    CAPACITY = UM_SHARED_CAPACITY_MIN,
    SKIPPED = 20,
    RECORDS_MAX = 60, /* that one client publishes in its life */
    TURNS_MAX = 1500, /* of a round, until clients stop publishing */
    SETTLING_MAX = 100000,
    KILL_ONE_IN = 100,
    KILL_INSIDE_ONE_IN = 12, /* if the party is inside of an operation */
    READS_PER_PASS = 4,
    ROUNDS = 12,
};

typedef struct record_head {
    uint32_t number; /* counts the log's records */
    uint32_t owner;
    uint32_t life;
    uint32_t length; /* of the record */
} record_head;

typedef struct shared {
    void *memory;
    um_shared_writer writer;
    uint32_t owner, life;
    uint32_t begun, appended; /* records; they differ while one is being appended */
    uint32_t users;           /* the owner, and readers: the memory is freed without any */
    bool is_source_paced;
    bool is_hostile;
    struct attachment *links[PARTIES]; /* by reader; the owner's view */
} shared;

/* A reader that is attached to a log, or asks for it. */
typedef struct attachment {
    shared *log;
    um_shared_reader_page *page;
    bool is_writer_open, is_reader_open; /* each end closes by itself, or dies */
    bool is_joined, is_reading;
    bool is_hostile; /* its reader */
    bool is_stalled; /* the writer has waited for it for the stall timeout */
    um_shared_peer peer;
    um_shared_reader reader;
    uint32_t next;                /* number of the next record */
    record_head relayed[PARTIES]; /* log 0: the last record of each client */
} attachment;

typedef struct process {
    party party;
    uint32_t index, life;
    shared *log;
    attachment *reads[PARTIES]; /* by owner; the reader's view */
    uint8_t *body;              /* UM_SHARED_RECORD_BYTES_MAX */
    uint8_t *made;              /* the record that is appended */
    uint32_t pending_bytes;     /* driver: of the record in `made` that has no space yet, without its head */
    bool is_hostile;
    bool is_waiting; /* for space */
} process;

static process processes[PARTIES];
static um_random draws;
static uint32_t log_count, attachment_count;          /* that exist */
static uint32_t kill_count, cut_count, overrun_count; /* in all rounds */
static uint32_t broken_count, torn_count, read_count, inside_count;
static bool is_ending;

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)um_random_below(&draws, bound);
}

static uint8_t byte_of(const record_head *head, uint32_t at)
{
    return (uint8_t)(head->number * 31 + head->owner * 101 + head->life * 57 + at * 7);
}

/* ---- logs and links ---- */

static void forget_user(shared *log)
{
    if (--log->users > 0)
        return;
    free(log->memory);
    free(log);
    log_count--;
}

static void free_if_closed(attachment *one)
{
    if (one->is_writer_open || one->is_reader_open)
        return;
    free(one->page);
    free(one);
    attachment_count--;
}

/* The writer closes its end: the kernel wakes the reader. */
static void close_writer_end(attachment *one, uint32_t reader)
{
    one->log->links[reader] = NULL;
    one->is_writer_open = false;
    step_wake(&processes[reader].party);
    free_if_closed(one);
}

static void close_reader_end(attachment *one, uint32_t reader)
{
    shared *log = one->log;
    processes[reader].reads[log->owner] = NULL;
    one->is_reader_open = false;
    if (one->is_writer_open)
        step_wake(&processes[log->owner].party);
    free_if_closed(one);
    forget_user(log);
}

static void ask(process *me, uint32_t owner)
{
    shared *log = processes[owner].log;
    if (log == NULL || log->links[me->index] != NULL || me->reads[owner] != NULL)
        return;
    attachment *one = zeroed(sizeof *one);
    *one = (attachment){.log = log, .is_writer_open = true, .is_reader_open = true, .is_hostile = me->is_hostile};
    attachment_count++;
    log->users++;
    log->links[me->index] = me->reads[owner] = one;
    step_wake(&processes[owner].party);
}

/* The writer answers those who ask, and frees what readers that have closed or died had. */
static void serve_links(process *me)
{
    for (uint32_t i = 0; i < PARTIES; i++) {
        attachment *one = me->log->links[i];
        if (one == NULL)
            continue;
        if (!one->is_reader_open || one->is_stalled) {
            cut_count += one->is_reader_open;
            close_writer_end(one, i);
        } else if (!one->is_joined) {
            one->page = zeroed(UM_SHARED_READER_BYTES);
            um_shared_peer_init(&one->peer, one->page, &me->log->writer);
            one->next = me->log->appended;
            one->is_joined = true;
            step_wake(&processes[i].party);
        }
    }
}

/* ---- writing ---- */

/* Returns the space that a reader leaves; asks to be woken if it is less than the span. */
static uint32_t space_of(process *me, uint32_t reader, uint32_t span)
{
    attachment *one = me->log->links[reader];
    bool is_accepted;
    STEPPED(is_accepted = um_shared_peer_update(&one->peer, &me->log->writer));
    uint32_t space = um_shared_peer_space(&one->peer, &me->log->writer);
    if (is_accepted && space < span) {
        STEPPED(um_shared_peer_want(&one->peer, &me->log->writer, span > CAPACITY / 4 ? span : CAPACITY / 4));
        STEPPED(is_accepted = um_shared_peer_update(&one->peer, &me->log->writer));
        space = um_shared_peer_space(&one->peer, &me->log->writer);
    }
    CHECK(space <= CAPACITY);
    if (is_accepted)
        return space;
    CHECK(one->is_hostile || me->is_hostile); /* the page of a party that was killed is sound, too */
    cut_count++;
    close_writer_end(one, reader);
    return CAPACITY;
}

static bool has_space(process *me, uint32_t span)
{
    bool has = true;
    for (uint32_t i = 0; i < PARTIES && !me->log->is_source_paced; i++)
        if (me->log->links[i] != NULL && me->log->links[i]->is_joined && space_of(me, i, span) < span)
            has = false;
    me->is_waiting = !has;
    return has;
}

/* Appends the record in `made`, whose body of `bytes` bytes stands behind the head. Returns false without space. */
static bool append(process *me, uint32_t bytes)
{
    shared *log = me->log;
    record_head head = {log->appended, me->index, me->life, (uint32_t)sizeof head + bytes};
    if (!has_space(me, um_shared_record_span(head.length)))
        return false;
    memcpy(me->made + SKIPPED, &head, sizeof head);
    if (me->index != DRIVER)
        for (uint32_t i = 0; i < bytes; i++)
            me->made[SKIPPED + sizeof head + i] = byte_of(&head, i);
    um_part parts[2] = {{me->made, SKIPPED + 6}, {me->made + SKIPPED + 6, head.length - 6}};
    log->begun++;
    STEPPED(um_shared_writer_append(&log->writer, parts, 2, SKIPPED, head.length));
    log->appended++;
    STEPPED(um_shared_writer_fence());
    for (uint32_t i = 0; i < PARTIES; i++) {
        bool is_asleep = false;
        if (log->links[i] == NULL || !log->links[i]->is_joined)
            continue;
        STEPPED(is_asleep = um_shared_peer_take_sleep(&log->links[i]->peer));
        if (is_asleep)
            step_wake(&processes[i].party);
    }
    return true;
}

static uint32_t draw_bytes(void)
{
    uint32_t kind = draw(10);
    return kind < 6 ? draw(100) : kind < 9 ? draw(3000) : draw(40000);
}

/* ---- reading ---- */

static void check_filler(const record_head *head, const uint8_t *filler)
{
    for (uint32_t i = 0; i < head->length - sizeof *head; i++)
        CHECK_EQ(filler[i], byte_of(head, i));
}

/* Checks a record of an honest writer, and what it relays of an honest client. */
static void check_record(attachment *one, const uint8_t *body, uint32_t length)
{
    record_head head, inner;
    CHECK(length >= sizeof head);
    memcpy(&head, body, sizeof head);
    CHECK_EQ(head.length, length);
    CHECK_EQ(head.owner, one->log->owner);
    CHECK_EQ(head.life, one->log->life);
    CHECK(one->log->is_source_paced ? head.number >= one->next : head.number == one->next);
    CHECK(head.number < one->log->begun);
    one->next = head.number + 1;
    read_count++;
    if (head.owner != DRIVER) {
        check_filler(&head, body + sizeof head);
        return;
    }
    if (length == sizeof head) /* of a hostile client */
        return;
    CHECK(length >= sizeof head + sizeof inner);
    memcpy(&inner, body + sizeof head, sizeof inner);
    CHECK(inner.owner > DRIVER && inner.owner < PARTIES);
    CHECK_EQ(inner.length, length - sizeof head);
    check_filler(&inner, body + sizeof head + sizeof inner);
    record_head *last = &one->relayed[inner.owner];
    CHECK(last->life < inner.life || (last->life == inner.life && last->number < inner.number));
    *last = inner;
}

/* The log of a closed or killed writer is read to its end. */
static void check_end(const attachment *one)
{
    const shared *log = one->log;
    if (log->is_hostile)
        return;
    CHECK_EQ(one->reader.position, atomic_load(&log->writer.header->end_position));
    if (!log->is_source_paced && !one->is_stalled)
        CHECK(one->next == log->appended || one->next == log->begun);
    torn_count += log->begun != one->next;
}

/* Keeps a record for log 0. A hostile client's is replaced by an empty one, since its bytes can be any. */
static void relay(process *me, const attachment *one, uint32_t length)
{
    me->pending_bytes = one->log->is_hostile ? 0 : length;
    memcpy(me->made + SKIPPED + sizeof(record_head), me->body, me->pending_bytes);
}

/* A reader that lies is cut off, and its log then overtakes it. */
static void check_broken(const attachment *one)
{
    CHECK(one->log->is_hostile || one->is_hostile);
    broken_count++;
}

/* Reads some records. Returns false if the reader is done with the log. */
static bool read_some(process *me, attachment *one, bool *has_read)
{
    for (uint32_t i = 0; i < READS_PER_PASS; i++) {
        enum um_shared_read read;
        bool is_writer_open = one->is_writer_open; /* an empty log that was closed before has ended */
        uint32_t length = 0;
        if (me->index == DRIVER && me->pending_bytes != UINT32_MAX)
            return true;
        STEPPED(read = um_shared_reader_next(&one->reader, me->body, &length));
        step_pause();
        if (read == UM_SHARED_BROKEN) {
            check_broken(one);
            return false;
        }
        if (read == UM_SHARED_EMPTY) {
            if (is_writer_open)
                return true;
            if (!me->is_hostile)
                check_end(one);
            return false;
        }
        *has_read = true;
        CHECK(one->reader.position >= 0 && one->reader.position <= one->reader.end_position);
        CHECK_EQ(one->reader.offset_bytes, one->reader.position % CAPACITY);
        overrun_count += read == UM_SHARED_OVERRUN;
        CHECK(read == UM_SHARED_RECORD || one->log->is_source_paced);
        if (read == UM_SHARED_RECORD) {
            CHECK(length <= UM_SHARED_RECORD_BYTES_MAX);
            if (!one->log->is_hostile && !me->is_hostile)
                check_record(one, me->body, length);
            if (me->index == DRIVER)
                relay(me, one, length);
        }
    }
    return true;
}

static bool open_reader(attachment *one)
{
    int64_t position = one->peer.position;
    if (one->log->is_hostile && draw(4) == 0)
        position = (int64_t)um_random_next(&draws);
    bool is_right =
        um_shared_reader_init(&one->reader, one->log->memory, one->page, CAPACITY, position, one->log->is_source_paced);
    CHECK(is_right || one->log->is_hostile);
    one->is_reading = true;
    broken_count += !is_right;
    return is_right;
}

static void read_link(process *me, uint32_t owner, bool *has_read)
{
    attachment *one = me->reads[owner];
    bool is_granted = false;
    if (!one->is_joined && one->is_writer_open)
        return;
    if (!one->is_joined || (!one->is_reading && !open_reader(one)) || !read_some(me, one, has_read)) {
        close_reader_end(one, me->index);
        *has_read = true; /* it asks for the next log before it sleeps */
        return;
    }
    STEPPED(is_granted = um_shared_reader_release(&one->reader));
    if (is_granted)
        step_wake(&processes[owner].party);
}

/* ---- hostile clients ---- */

static int64_t draw_position(int64_t near)
{
    switch (draw(4)) {
    case 0:
        return (int64_t)um_random_next(&draws);
    case 1:
        return near - 8 * (int64_t)draw(CAPACITY / 4);
    default:
        return near + 8 * (int64_t)draw(CAPACITY / 4);
    }
}

/* Overwrites something that this client may write. */
static void lie(process *me)
{
    um_shared_log_header *header = me->log->writer.header;
    int64_t end = me->log->writer.position;
    uint64_t head = draw(3) == 0 ? um_random_next(&draws) : draw(CAPACITY);
    attachment *one = me->reads[draw(2) == 0 ? DRIVER : draw(PARTIES)];
    switch (draw(9)) {
    case 0:
        atomic_store(&header->end_position, draw_position(end));
        break;
    case 1:
        atomic_store(&header->begun_position, draw_position(end));
        break;
    case 2:
        atomic_store(&header->is_ended, draw(3));
        break;
    case 3: /* one more record, which it did not write */
        head %= CAPACITY;
        memcpy(me->log->writer.ring + end % CAPACITY, &head, sizeof head);
        atomic_store(&header->end_position, end + 8 * (int64_t)draw(CAPACITY / 8));
        break;
    case 4:
        memcpy(me->log->writer.ring + draw(CAPACITY / 8) * 8, &head, sizeof head);
        break;
    default:
        if (one == NULL || !one->is_joined)
            break;
        atomic_store(&one->page->position, draw_position(atomic_load(&one->page->position)));
        atomic_store(&one->page->is_sleeping, draw(2));
        atomic_store(&one->page->wanted_position, draw_position(-1));
    }
    for (uint32_t i = 1; i < PARTIES; i++) /* a wake-up without a reason */
        step_wake(&processes[draw(PARTIES)].party);
}

/* ---- the programs ---- */

/* A writer that has nothing to do has woken every reader that has something to read. */
static void check_woken(const process *me)
{
    for (uint32_t i = 0; i < PARTIES; i++) {
        const attachment *one = me->log->links[i];
        const process *reader = &processes[i];
        bool is_asleep = reader->party.is_parked && reader->party.wakes == 0 && reader->pending_bytes == UINT32_MAX;
        if (one != NULL && one->is_reader_open && one->is_reading && is_asleep && !me->is_hostile && !one->is_hostile)
            CHECK_EQ(one->reader.position, me->log->writer.position);
    }
}

/* Sleeps until another party wakes it, unless there is something to read. */
static void sleep_or_return(process *me)
{
    bool is_armed[PARTIES] = {false}, is_asleep = true;
    for (uint32_t i = 0; i < PARTIES && is_asleep; i++) {
        attachment *one = me->reads[i];
        if (one == NULL || !one->is_reading || (me->index == DRIVER && me->pending_bytes != UINT32_MAX))
            continue;
        STEPPED(is_asleep = um_shared_reader_begin_sleep(&one->reader));
        is_armed[i] = is_asleep;
    }
    if (is_asleep) {
        check_woken(me);
        step_park();
    }
    for (uint32_t i = 0; i < PARTIES; i++)
        if (is_armed[i])
            STEPPED(um_shared_reader_end_sleep(&me->reads[i]->reader));
}

static bool is_wanted(uint32_t reader, uint32_t owner)
{
    if (owner == DRIVER || reader == DRIVER)
        return owner != reader;
    return owner % (PARTIES - 1) + 1 == reader;
}

/* Returns true if something was written, or nothing has to be. */
static bool write_some(process *me)
{
    if (me->index == DRIVER) {
        if (me->pending_bytes == UINT32_MAX)
            return false;
        if (!append(me, me->pending_bytes))
            return false;
        me->pending_bytes = UINT32_MAX;
        return true;
    }
    if (is_ending || me->log->appended >= RECORDS_MAX) {
        me->is_waiting = false;
        return false;
    }
    return append(me, draw_bytes());
}

static void run_process(void *argument)
{
    process *me = argument;
    for (;;) {
        bool has_read = false;
        serve_links(me);
        for (uint32_t i = 0; i < PARTIES; i++) {
            if (is_wanted(me->index, i))
                ask(me, i);
            if (me->reads[i] != NULL)
                read_link(me, i, &has_read);
            step_pause();
        }
        if (me->is_hostile && draw(2) == 0)
            lie(me);
        bool has_written = write_some(me);
        step_pause();
        if (!has_read && !has_written)
            sleep_or_return(me);
    }
}

/* ---- the scheduler ---- */

static void start_process(uint32_t index)
{
    process *me = &processes[index];
    uint32_t life = me->life + 1;
    *me = (process){.index = index, .life = life, .pending_bytes = UINT32_MAX};
    me->is_hostile = index != DRIVER && !is_ending && draw(4) == 0;
    me->body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
    me->made = zeroed(SKIPPED + UM_SHARED_RECORD_BYTES_MAX);
    me->log = zeroed(sizeof *me->log);
    *me->log = (shared){.owner = index, .life = life, .users = 1, .is_hostile = me->is_hostile};
    me->log->is_source_paced = index != DRIVER && draw(3) == 0;
    me->log->memory = zeroed(um_shared_log_footprint(CAPACITY));
    um_shared_writer_init(&me->log->writer, me->log->memory, CAPACITY);
    log_count++;
    step_start(&me->party, run_process, me);
}

/* Kills a process, and does what the kernel then does. */
static void kill_process(uint32_t index)
{
    process *me = &processes[index];
    step_kill(&me->party);
    for (uint32_t i = 0; i < PARTIES; i++) {
        if (me->log->links[i] != NULL)
            close_writer_end(me->log->links[i], i);
        if (me->reads[i] != NULL)
            close_reader_end(me->reads[i], index);
        step_wake(&processes[i].party); /* it may ask for the next log */
    }
    forget_user(me->log);
    me->log = NULL;
    free(me->body);
    free(me->made);
}

/* Nobody can run: a writer waits for a hostile reader, which the stall timeout cuts off, or all is done. */
static bool cut_stalled(void)
{
    bool has_cut = false;
    for (uint32_t i = 0; i < PARTIES; i++) {
        for (uint32_t k = 0; k < PARTIES && processes[i].is_waiting; k++) {
            attachment *one = processes[i].log->links[k];
            if (one == NULL || !one->is_hostile)
                continue;
            one->is_stalled = has_cut = true;
            step_wake(&processes[i].party);
        }
        CHECK(has_cut || !processes[i].is_waiting); /* no timeout is needed for a dead or honest party */
    }
    return has_cut;
}

/* Gives a turn to a party that can run, and returns it; NULL: there is none. */
static process *run_one(void)
{
    uint32_t first = draw(PARTIES);
    for (uint32_t i = 0; i < PARTIES; i++) {
        process *one = &processes[(first + i) % PARTIES];
        if (!step_can_run(&one->party))
            continue;
        uint32_t kind = draw(8);
        uint32_t instructions = kind < 4 ? 1 + draw(30) : kind < 7 ? draw(1000) : 20000;
        step_turn(&one->party, instructions, kind < 7 && draw(8) == 0);
        return one;
    }
    return NULL;
}

static void check_settled(void)
{
    for (uint32_t i = 0; i < PARTIES; i++) {
        const process *me = &processes[i];
        CHECK_EQ(me->pending_bytes, UINT32_MAX);
        for (uint32_t k = 0; k < PARTIES; k++) {
            if (!is_wanted(i, k))
                continue;
            CHECK(me->reads[k] != NULL && me->reads[k]->is_reading);
            CHECK_EQ(me->reads[k]->reader.position, processes[k].log->writer.position);
            if (!processes[k].log->is_source_paced)
                CHECK_EQ(me->reads[k]->next, processes[k].log->appended);
        }
    }
}

static void run_round(void)
{
    is_ending = false;
    for (uint32_t i = 0; i < PARTIES; i++)
        start_process(i);
    for (uint32_t turn = 0; turn < TURNS_MAX; turn++) {
        const process *ran = run_one();
        bool has_stopped = ran == NULL && !cut_stalled();
        bool is_inside = ran != NULL && ran->party.is_inside;
        uint32_t victim = is_inside ? ran->index : draw(PARTIES);
        if (!has_stopped && draw(is_inside ? KILL_INSIDE_ONE_IN : KILL_ONE_IN) != 0)
            continue;
        kill_count++;
        inside_count += is_inside;
        kill_process(victim);
        start_process(victim);
    }
    is_ending = true;
    for (uint32_t i = 0; i < PARTIES; i++) {
        if (processes[i].is_hostile) {
            kill_process(i);
            start_process(i);
        }
        step_wake(&processes[i].party);
    }
    uint32_t turns = 0;
    while (run_one() != NULL)
        CHECK(turns++ < SETTLING_MAX);
    CHECK(!cut_stalled());
    check_settled();
    for (uint32_t i = 0; i < PARTIES; i++)
        kill_process(i);
    CHECK_EQ(log_count, 0);
    CHECK_EQ(attachment_count, 0);
}

TEST("UX-12", "parties that die at any instruction, or lie, harm only themselves")
{
    const char *given = getenv("UM_ROUNDS");
    uint32_t rounds = given ? (uint32_t)strtoul(given, NULL, 0) : ROUNDS;
    uint64_t seed = check_seed();
    if (given != NULL)
        alarm(0);
    step_init();
    for (uint32_t i = 0; i < rounds; i++) {
        draws = (um_random){seed + i};
        printf("    round %" PRIu32 ": UM_SEED=0x%" PRIx64 " UM_ROUNDS=1\n", i, seed + i);
        run_round();
    }
    printf("    %" PRIu64 " traps, %u kills (%u inside), %u records, %u torn, %u overrun, %u broken, %u cut\n",
           step_trap_count, kill_count, inside_count, read_count, torn_count, overrun_count, broken_count, cut_count);
    CHECK(kill_count > 0 && read_count > 0);
    CHECK(rounds < ROUNDS || (torn_count > 0 && overrun_count > 0 && broken_count > 0 && cut_count > 0));
}

CHECK_MAIN
