/* Ranks exchange a hash of the facts first; only when these differ do they need the
 * facts. */
#include "api/agreement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/probe.h"
#include "base/status.h"

/* ---- Facts ---- */

void ewx_facts_asked(const ew_problem *problem, int num_ranks, const ew_config *request,
                     ewx_text *text)
{
    ewx_problem_print(problem, num_ranks, text);
    ewx_text_add(text, ",");
    ewx_config_print_open(request, text);
}

void ewx_facts_decided(const ewx_spec *spec, ewx_text *text)
{
    const ewx_layout *layout = &spec->layout;
    ewx_problem_print(&spec->problem, spec->num_ranks, text);
    ewx_text_add(text, ",");
    ewx_config_print_open(&spec->config, text);
    ewx_text_add(text,
                 ",elem_bytes=%zu,row_major=%d,max_tile_rows=%" PRId64 ",tile_cols=%" PRId64
                 ",slots_per_part=%" PRId64 ",num_slots=%" PRId64 ",tile_stride=%" PRId64
                 ",slot_bytes=%zu,flags_offset=%zu,"
                 "first_slice=%zu,second_slice=%zu,segment_bytes=%zu",
                 spec->elem_bytes, layout->row_major, layout->max_tile_rows,
                 layout->tile_cols, layout->slots_per_part, layout->num_slots,
                 layout->tile_stride, layout->slot_bytes, layout->flags_offset,
                 layout->slice_offset[0], layout->slice_offset[1], layout->segment_bytes);
}

/* In test builds a probe can make any fact wrong, by its place. */
static void bend(const ew_world *world, char *facts)
{
    int64_t place = 0;
    for (char *at = facts; *at; at++) {
        const bool ends = at[1] == ',' || at[1] == '\0';
        if (ends && EWX_PROBE(EWX_PROBE_FACT, world->rank, place))
            *at = *at == '7' ? '8' : '7';
        place += ends;
    }
    (void)world, (void)place;
}

/* ---- Comparison ---- */

typedef struct digest {
    int64_t status;
    uint64_t hash; /* 0: no facts */
} digest;

/* The first "key=value" in which two texts of the same keys differ. */
static void find_difference(const char *mine, const char *other, ewx_text *my_item,
                            ewx_text *other_item)
{
    size_t item = 0;
    for (size_t i = 0; mine[i] && mine[i] == other[i]; i++)
        if (mine[i] == ',')
            item = i + 1;
    ewx_text_add(my_item, "%.*s", (int)strcspn(mine + item, ","), mine + item);
    ewx_text_add(other_item, "%.*s", (int)strcspn(other + item, ","), other + item);
}

/* Collective; only when ranks disagree. */
static ew_status tell_difference(ew_world *world, const char *facts)
{
    char mine[EWX_FACTS_BYTES] = "", my_item[64], other_item[64];
    char(*all)[EWX_FACTS_BYTES] = calloc((size_t)world->num_ranks, sizeof *all);
    if (!all) {
        ewx_world_give_up(world,
                          EW_ERR_MEMORY); /* or the others would wait for our facts */
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", world->num_ranks);
    }
    memcpy(mine, facts, strlen(facts) + 1);
    ew_status status = ewx_world_allgather(world, mine, all, sizeof mine);
    for (int rank = 0; rank < world->num_ranks && status == EW_OK; rank++) {
        all[rank][EWX_FACTS_BYTES - 1] = '\0';
        if (!mine[0] || !all[rank][0] || strcmp(mine, all[rank]) == 0)
            continue;
        ewx_text my_text = ewx_text_in(my_item, sizeof my_item);
        ewx_text other_text = ewx_text_in(other_item, sizeof other_item);
        find_difference(mine, all[rank], &my_text, &other_text);
        status = ewx_fail(EW_ERR_MISMATCH,
                          "ranks disagree: rank %d has %s, rank %d has %s\n"
                          "  fix: create the plan with the same problem and config "
                          "on all ranks",
                          world->rank, my_item, rank, other_item);
    }
    free(all);
    return status;
}

static ew_status judge(ew_world *world, const digest *all, const char *facts)
{
    uint64_t hash = 0;
    bool same = true;
    for (int rank = 0; rank < world->num_ranks; rank++) {
        same &= all[rank].hash == 0 || hash == 0 || all[rank].hash == hash;
        hash = all[rank].hash ? all[rank].hash : hash;
    }
    if (!same)
        EW_TRY(tell_difference(world, facts));
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (all[rank].status != EW_OK)
            return ewx_fail((ew_status)all[rank].status,
                            "rank %d cannot create the plan (%s)", rank,
                            ew_status_text((ew_status)all[rank].status));
    return EW_OK;
}

ew_status ewx_agree_on(ew_world *world, ew_status own, const char *facts)
{
    char why[1024], bent[EWX_FACTS_BYTES];
    ewx_text reason = ewx_text_in(why, sizeof why), text = ewx_text_in(bent, sizeof bent);
    if (own != EW_OK)
        ewx_text_add(&reason, "%s", ew_last_error());
    ewx_text_add(&text, "%s", facts);
    bend(world, bent);
    const digest mine = {own, *bent ? ewx_text_hash(bent) : 0};
    digest all[EWX_MAX_RANKS];
    ew_status status = ewx_world_allgather(world, &mine, all, sizeof mine);
    if (status == EW_OK)
        status = judge(world, all, bent);
    return own != EW_OK ? ewx_fail(own, "%s", why) : status;
}
