/* The hand-off under everything: payload, then epoch with release; epoch with acquire,
 * then payload.  And the one way to wait: bounded, hears an abort, costs nothing when
 * there is nothing to wait for. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_heap.h"
#include "base/clock.h"
#include "base/epoch.h"
#include "base/wait.h"
#include "stress.h"

/* Sanitizers see a race in the first few; the hardware needs many. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { USUAL_HAND_OFFS = 200000 };
#else
enum { USUAL_HAND_OFFS = 5000000 };
#endif
/* Few slots, so that their lines travel between the cores; every word of a payload in a
 * line of its own, read from the last to the first.  With 64 slots of one line each, builds
 * without release or acquire went unnoticed. */
#define RING 4u
#define PAYLOAD_LINES 4
/* Where the two threads seldom run at a time, a turn of the ring takes a tick, and the
 * usual number half an hour: after so long fewer will do. */
#define LONG_ENOUGH_NS 60000000000
#define CLOCK_EVERY 4096u

typedef struct line {
    _Alignas(256) uint32_t word;
} line;

/* Slots as the heap has them: a payload away from its flag. */
typedef struct slot {
    ewx_flag flag;
    line payload[PAYLOAD_LINES];
} slot;

typedef struct litmus {
    slot slots[RING];
    _Alignas(
        64) _Atomic uint32_t done; /* as a segment header's: what the reader has read */
    _Alignas(64) uint64_t stale;
    ew_status statuses[2];
    int64_t end_ns;
    _Alignas(64) _Atomic uint32_t hand_offs;
} litmus;

static uint32_t hand_offs_of(litmus *l)
{
    return atomic_load_explicit(&l->hand_offs, memory_order_relaxed);
}

/* Before an epoch is published, so that whoever has seen it sees the new end. */
static void end_in_time(litmus *l, uint32_t epoch)
{
    if (epoch % CLOCK_EVERY == 0 && hand_offs_of(l) - epoch > RING &&
        ewx_now_ns() > l->end_ns)
        atomic_store_explicit(&l->hand_offs, epoch + RING, memory_order_relaxed);
}

static void *publish_all(void *argument)
{
    litmus *l = argument;
    for (uint32_t epoch = 1; epoch <= hand_offs_of(l); epoch++) {
        slot *s = &l->slots[epoch % RING];
        ewx_wait wait = ewx_wait_begin(NULL, 60000000000, 100);
        end_in_time(l, epoch);
        EWX_AWAIT(l->statuses[0], &wait,
                  ewx_epoch_reached(atomic_load_explicit(&l->done, memory_order_acquire),
                                    epoch - RING));
        if (l->statuses[0] != EW_OK)
            break;
        for (uint32_t i = 0; i < PAYLOAD_LINES; i++)
            s->payload[i].word = epoch + i;
        ewx_flag_publish(&s->flag, epoch);
    }
    return NULL;
}

static void *read_all(void *argument)
{
    litmus *l = argument;
    for (uint32_t epoch = 1; epoch <= hand_offs_of(l); epoch++) {
        slot *s = &l->slots[epoch % RING];
        ewx_wait wait = ewx_wait_begin(NULL, 60000000000, 100);
        EWX_AWAIT(l->statuses[1], &wait, ewx_flag_reached(&s->flag, epoch));
        if (l->statuses[1] != EW_OK)
            break;
        for (uint32_t i = PAYLOAD_LINES; i-- > 0;)
            l->stale += s->payload[i].word != epoch + i;
        atomic_store_explicit(&l->done, epoch, memory_order_release);
    }
    return NULL;
}

static void hand_offs_are_never_stale(void **state)
{
    (void)state;
    pthread_t publisher, reader;
    litmus *l = harness_share(sizeof *l);
    const uint32_t wanted = (uint32_t)stress_count("HAND_OFFS", USUAL_HAND_OFFS);
    l->hand_offs = wanted;
    l->end_ns =
        wanted > USUAL_HAND_OFFS ? INT64_MAX : ewx_now_ns() + LONG_ENOUGH_NS; /* stress */
    assert_int_equal(pthread_create(&publisher, NULL, publish_all, l), 0);
    assert_int_equal(pthread_create(&reader, NULL, read_all, l), 0);
    pthread_join(publisher, NULL);
    pthread_join(reader, NULL);
    assert_int_equal(l->statuses[0], EW_OK);
    assert_int_equal(l->statuses[1], EW_OK);
    assert_int_equal(l->stale, 0);
    assert_int_equal(atomic_load(&l->done), hand_offs_of(l));
    stress_tell("hand_offs", "%u", hand_offs_of(l));
    stress_tell("stale", "%llu", (unsigned long long)l->stale);
    stress_figure("hand-offs");
    harness_unshare(l, sizeof *l);
}

/* ---- Waiting ---- */

static void nothing_to_wait_for_costs_no_turn(void **state)
{
    (void)state;
    _Atomic uint64_t abort_word = 1; /* a turn would hear this */
    ewx_wait wait = ewx_wait_begin(&abort_word, 0, 0);
    ew_status status = EW_ERR_SYSTEM;
    EWX_AWAIT(status, &wait, true);
    assert_int_equal(status, EW_OK);
    assert_int_equal(wait.turn, 0);
}

static void timeouts_are_honoured(void **state)
{
    static const int32_t spins[] = {0, 200};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int64_t timeout_ms = 0; timeout_ms <= 200; timeout_ms += 50) {
            _Atomic uint64_t abort_word = 0;
            const int64_t start_ns = ewx_now_ns();
            ewx_wait wait = ewx_wait_begin(&abort_word, timeout_ms * 1000000, spins[i]);
            ew_status status;
            EWX_AWAIT(status, &wait, false);
            const int64_t took_ns = ewx_now_ns() - start_ns;
            assert_int_equal(status, EW_ERR_TIMEOUT);
            assert_true(took_ns >= timeout_ms * 1000000);
            assert_true(took_ns < timeout_ms * 1000000 + 5000000000);
        }
}

typedef struct caller {
    _Atomic uint64_t word;
    atomic_int asked;
    int after_ms;
} caller;

static void *call_later(void *argument)
{
    caller *c = argument;
    sleep_ms(c->after_ms);
    atomic_store(&c->word, 1);
    return NULL;
}

/* In every stage of a wait: spinning, yielding, sleeping. */
static void aborts_end_a_wait(void **state)
{
    static const int after_ms[] = {0, 1, 30};
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int32_t spins = 0; spins <= 1000000; spins += 1000000) {
            caller c = {.after_ms = after_ms[i]};
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, call_later, &c), 0);
            ewx_wait wait = ewx_wait_begin(&c.word, 60000000000, spins);
            const int64_t start_ns = ewx_now_ns();
            ew_status status;
            EWX_AWAIT(status, &wait, false);
            pthread_join(thread, NULL);
            assert_int_equal(status, EW_ERR_ABORTED);
            assert_true(ewx_now_ns() - start_ns < 10000000000);
        }
}

/* Somebody who waits has found the word not yet set. */
static void *call_later_when_asked(void *argument)
{
    caller *c = argument;
    while (atomic_load(&c->asked) == 0)
        sleep_ms(1);
    return call_later(c);
}

static bool is_called(caller *c)
{
    const bool called = atomic_load(&c->word) == 1;
    atomic_store(&c->asked, 1);
    return called;
}

static void conditions_end_a_wait(void **state)
{
    (void)state;
    caller c = {.after_ms = 20};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_later_when_asked, &c), 0);
    ewx_wait wait = ewx_wait_begin(NULL, 60000000000, 0);
    ew_status status;
    EWX_AWAIT(status, &wait, is_called(&c));
    pthread_join(thread, NULL);
    assert_int_equal(status, EW_OK);
    assert_true(wait.turn > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_offs_are_never_stale),
        cmocka_unit_test(nothing_to_wait_for_costs_no_turn),
        cmocka_unit_test(timeouts_are_honoured),
        cmocka_unit_test(aborts_end_a_wait),
        cmocka_unit_test(conditions_end_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
