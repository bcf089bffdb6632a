#include "world/places.h"

#include <stdlib.h>
#include <string.h>

#include "world/world.h"

_Static_assert(sizeof(ewx_cpu_share) % sizeof(uint64_t) == 0, "a share is words");

static ewx_place_card *card_of(const ew_world *world, int rank)
{
    return &world->mailboxes[rank]->place;
}

void ewx_place_post(ew_world *world)
{
    ewx_place_card *card = card_of(world, world->rank);
    uint64_t words[sizeof(ewx_cpu_share) / sizeof(uint64_t)];
    ewx_cpu_share share;
    ewx_cpu_share_read(&share);
    memcpy(words, &share, sizeof share);
    for (size_t at = 0; at < sizeof words / sizeof words[0]; at++)
        atomic_store_explicit(&card->words[at], words[at], memory_order_relaxed);
}

static void read_card(const ew_world *world, int rank, ewx_cpu_share *share_out)
{
    const ewx_place_card *card = card_of(world, rank);
    uint64_t words[sizeof(ewx_cpu_share) / sizeof(uint64_t)];
    for (size_t at = 0; at < sizeof words / sizeof words[0]; at++)
        words[at] = atomic_load_explicit(&card->words[at], memory_order_relaxed);
    memcpy(share_out, words, sizeof *share_out);
    if (share_out->num_quotas > EWX_MAX_CPU_QUOTAS) /* a peer's memory is not trusted */
        share_out->num_quotas = 0;
}

/* ---- Homes ---- */

/* Ranks that may use the same cores divide their domains among themselves. */
static void choose_home(const ewx_cpu_share *shares, int count, int which,
                        ewx_home *home_out)
{
    int index = 0, equals = 0;
    for (int local = 0; local < count; local++) {
        if (local == which)
            index = equals;
        equals += ewx_cpus_equal(&shares[local].cpus, &shares[which].cpus);
    }
    ewx_home_choose(ewx_domains_find(), &shares[which].cpus, index, equals, home_out);
}

/* From what ranks may use to what they should. */
static void send_home(const ewx_cpu_share *shares, int count, ewx_cpu_share *at_home)
{
    ewx_home home;
    memcpy(at_home, shares, (size_t)count * sizeof *shares);
    for (int local = 0; ewx_domains_find()->count > 0 && local < count; local++) {
        choose_home(shares, count, local, &home);
        at_home[local].cpus = home.cpus;
    }
}

/* The shares of this host's ranks, and room for as many; NULL: no memory. */
static ewx_cpu_share *collect(const ew_world *world)
{
    ewx_cpu_share *shares = calloc(2 * (size_t)world->num_locals, sizeof *shares);
    for (int local = 0; shares && local < world->num_locals; local++)
        read_card(world, world->locals[local], &shares[local]);
    return shares;
}

void ewx_place_home(const ew_world *world, ewx_home *home_out)
{
    *home_out = (ewx_home){.num_domains = 0};
    ewx_cpu_share *shares = ewx_domains_find()->count > 0 ? collect(world) : NULL;
    if (shares)
        choose_home(shares, world->num_locals, world->local_index, home_out);
    free(shares);
}

void ewx_place_bind(int rank, int num_ranks)
{
    ewx_cpu_share share;
    ewx_home home;
    if (ewx_domains_find()->count == 0)
        return;
    ewx_cpu_share_read(&share);
    ewx_home_choose(ewx_domains_find(), &share.cpus, rank, num_ranks, &home);
    (void)ewx_home_enter(&home);
}

/* ---- Cores ---- */

static ewx_provision provide(const ewx_cpu_share *shares, int count, ewx_cpu_share *room)
{
    send_home(shares, count, room);
    return ewx_cpu_provide(room, count);
}

ewx_provision ewx_places_provide(ew_world *world)
{
    ewx_cpu_share *shares = collect(world);
    const int count = world->num_locals, cores = shares ? 0 : ewx_usable_cores();
    ewx_provision provision = {cores, cores > count ? cores / count : 1, cores >= count};
    if (shares)
        provision = provide(shares, count, shares + count);
    free(shares);
    world->spins = provision.is_enough ? EWX_SPINS_WITH_A_CORE : 0;
    return provision;
}

static int most_domains(const ewx_cpus *cpus, int num_ranks)
{
    int most = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        ewx_home home;
        ewx_home_choose(ewx_domains_find(), cpus, rank, num_ranks, &home);
        most = home.num_domains > most ? home.num_domains : most;
    }
    return most;
}

ewx_provision ewx_places_forecast(int num_ranks, int *most_domains_out)
{
    ewx_cpu_share mine, *shares = calloc(2 * (size_t)num_ranks, sizeof *shares);
    ewx_cpu_share_read(&mine);
    ewx_provision provision = ewx_cpu_provide(&mine, 1);
    for (int rank = 0; shares && rank < num_ranks; rank++)
        shares[rank] = mine;
    if (shares)
        provision = provide(shares, num_ranks, shares + num_ranks);
    free(shares);
    *most_domains_out = most_domains(&mine.cpus, num_ranks);
    return provision;
}
