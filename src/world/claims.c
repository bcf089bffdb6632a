#include "world/claims.h"

#include <inttypes.h>

#include "base/status.h"
#include "base/text.h"
#include "world/world.h"

static ewx_claim *claim_of(const ew_world *world, int rank)
{
    return &world->mailboxes[rank]->claim;
}

static void post_limits(ew_world *world, const ewx_memory_limits *limits)
{
    ewx_claim *own = claim_of(world, world->rank);
    int count = 0;
    for (int at = 0; at < limits->count; at++)
        if (limits->at[at].id != 0)
            atomic_store_explicit(&own->limits[count++], limits->at[at].id,
                                  memory_order_relaxed);
    if (count < EWX_MAX_MEMORY_LIMITS)
        atomic_store_explicit(&own->limits[count], 0, memory_order_relaxed);
}

void ewx_claims_open(ew_world *world)
{
    ewx_memory_limits limits;
    ewx_memory_limits_read(&limits);
    post_limits(world, &limits);
}

static bool is_under(const ew_world *world, int rank, uint64_t id)
{
    uint64_t other = id;
    if (id == 0 || rank == world->rank || world->in_threads)
        return true;
    for (int at = 0; at < EWX_MAX_MEMORY_LIMITS && other != 0; at++) {
        other =
            atomic_load_explicit(&claim_of(world, rank)->limits[at], memory_order_relaxed);
        if (other == id)
            return true;
    }
    return false;
}

/* What a rank of this host claims, by its local index. */
typedef struct claims {
    uint64_t bytes[EWX_MAX_RANKS];
} claims;

static void collect(const ew_world *world, size_t least, claims *all)
{
    for (int local = 0; local < world->num_locals; local++) {
        const uint64_t bytes = atomic_load(&claim_of(world, world->locals[local])->bytes);
        all->bytes[local] = bytes > least ? bytes : least;
    }
}

/* What all ranks under a limit claim. */
static uint64_t claimed_under(const ew_world *world, const claims *all,
                              const ewx_memory_limit *limit, int *sharers_out)
{
    uint64_t needed = 0;
    *sharers_out = 0;
    for (int local = 0; local < world->num_locals; local++) {
        if (all->bytes[local] == 0 || !is_under(world, world->locals[local], limit->id))
            continue;
        ++*sharers_out;
        if (__builtin_add_overflow(needed, all->bytes[local], &needed))
            needed = UINT64_MAX;
    }
    return needed;
}

static ew_status fail_claim(const char *what, size_t bytes, int sharers, uint64_t needed,
                            const ewx_memory_limit *limit)
{
    char together[80] = "";
    ewx_text text = ewx_text_in(together, sizeof together);
    if (sharers > 1)
        ewx_text_add(&text, " on this rank, and %d ranks together %" PRIu64, sharers,
                     needed);
    return ewx_fail(EW_ERR_MEMORY,
                    "%s needs %zu bytes%s; %s has %zu bytes, of which %zu are free\n"
                    "  fix: free memory or raise the limit, or use a smaller shape or "
                    "fewer ranks",
                    what, bytes, together, limit->name, limit->limit_bytes,
                    limit->free_bytes);
}

/* Where several limits are exceeded, the error names the tightest. */
static ew_status check_claims(const ew_world *world, const claims *all,
                              const ewx_memory_limits *limits, size_t bytes,
                              const char *what)
{
    const ewx_memory_limit *tightest = NULL;
    int sharers = 0;
    for (int at = 0; at < limits->count; at++) {
        const ewx_memory_limit *limit = &limits->at[at];
        if (claimed_under(world, all, limit, &sharers) > limit->free_bytes &&
            (!tightest || limit->free_bytes < tightest->free_bytes))
            tightest = limit;
    }
    if (!tightest)
        return EW_OK;
    const uint64_t needed = claimed_under(world, all, tightest, &sharers);
    return fail_claim(what, bytes, sharers, needed, tightest);
}

ew_status ewx_claim_memory(ew_world *world, size_t bytes, bool together, const char *what)
{
    ewx_memory_limits limits;
    claims all;
    ewx_memory_limits_read(&limits);
    post_limits(world, &limits);
    /* Sequentially consistent, as the loads in collect(): of two ranks that claim at the
     * same time at least one sees the other. */
    atomic_fetch_add(&claim_of(world, world->rank)->bytes, bytes);
    /* Claims before what is free: bytes that are touched in between count twice rather
     * than not at all. */
    collect(world, together ? bytes : 0, &all);
    ewx_memory_limits_read(&limits);
    const ew_status status = check_claims(world, &all, &limits, bytes, what);
    if (status != EW_OK)
        ewx_claim_settle(world, bytes);
    return status;
}

void ewx_claim_settle(ew_world *world, size_t bytes)
{
    atomic_fetch_sub(&claim_of(world, world->rank)->bytes, bytes);
}
