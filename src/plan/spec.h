/* A spec is everything a backend needs to know, decided before it is called: the
 * problem, the chosen config, the number of ranks and the heap's layout.  Built by pure
 * functions; backends only read it. */
#ifndef EWX_PLAN_SPEC_H
#define EWX_PLAN_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/text.h"
#include "entwine/entwine.h"
#include "plan/layout.h"
#include "plan/ops/op.h"
#include "plan/release.h"

/* What one rank may use; policy reads it, backends fill it in. */
typedef struct ewx_machine {
    int cores;                  /* for all ranks */
    int cores_each;             /* for the least provided rank; 0: all have as many */
    int domains;                /* NUMA domains that a rank is spread over; 0: not known */
    const char *unplaced;       /* why ranks are not put into domains; NULL: they are */
    int hosts;                  /* on which they are; 0: one */
    int cpu_block[EW_FP16 + 1]; /* by type: side of the blocks that suit its GEMM; 0: any */
    ew_dtype cpu_packs[EW_FP16 + 1]; /* by type: as what its GEMM packs A; 0: as it is */
    int gpu_sms;                     /* of this rank's GPU or slice of one; 0: no GPU */
    int gpu_arch;                    /* 80, 90, ... */
    int gpu_sharers;                 /* ranks on this GPU; above 1 it is a virtual node */
    bool has_nccl;                   /* which producer=blas then reduces with */
    char device[128];                /* what times depend on, as tuning entries name it */
    char profile[64];                /* sim: that describes it; empty: it is a real one */
} ewx_machine;

static inline int ewx_cores_each(const ewx_machine *machine, int num_ranks)
{
    return machine->cores_each > 0 ? machine->cores_each : machine->cores / num_ranks;
}

typedef struct ewx_spec {
    ew_problem problem;
    const ewx_op *op; /* the problem's */
    ew_config config; /* every field chosen */
    int num_ranks;
    int num_hosts; /* that they are on */
    size_t elem_bytes;
    ewx_layout layout;
} ewx_spec;

/* Checks the problem, chooses the open fields of `request` (NULL: all) for a rank on such
 * a machine, checks the result, lays the heap out. */
ew_status ewx_spec_build(const ew_problem *problem, int num_ranks, const ew_config *request,
                         const ewx_machine *machine, ewx_spec *spec_out);

/* Problem and ranks as "key=value" text: what must be equal on all ranks. */
void ewx_problem_print(const ew_problem *problem, int num_ranks, ewx_text *text);
ew_status ewx_problem_check(const ew_problem *problem, int num_ranks);
/* Whether that is a rank, and a number of rows. */
ew_status ewx_place_check(int64_t m, int num_ranks, int rank);
/* All but the ranks: simulated ones may be more. */
ew_status ewx_problem_check_shape(const ew_problem *problem);

/* One key as "key=value". */
void ewx_config_print_key(const ew_config *config, const char *name, ewx_text *text);

/* As a config's text has it. */
const char *ewx_transport_name(ew_transport transport);

/* Whether contributions are stored in the memory of the rank that reads them, and whether
 * they become one sum there as they come. */
static inline bool ewx_transport_adds(ew_transport transport)
{
    return transport == EW_TRANSPORT_ADD || transport == EW_TRANSPORT_TMA_ADD;
}

static inline bool ewx_transport_pushes(ew_transport transport)
{
    return transport == EW_TRANSPORT_PUSH || ewx_transport_adds(transport);
}

/* AllGather-GEMM by copy engines: no CTAs push rows, they are copied beside the GEMM. */
static inline bool ewx_copies_rows(const ewx_op *op, const ew_config *config)
{
    return op->gemm_waits && config->transport == EW_TRANSPORT_COPY;
}

/* Whether the last blocks of a GEMM may be taken tile by tile (ewx_split_from).  One that
 * waits for rows loads B a tile at a time only where two CTAs share it. */
static inline bool ewx_splits_blocks(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    return config->producer == EW_PRODUCER_OWN && config->kernel == EW_KERNEL_SM90 &&
           config->ctas == EW_CTAS_PERSISTENT && config->block_n == 2 * EWX_TILE_N &&
           (!spec->op->gemm_waits || config->cluster == 2);
}

/* As ew_config_print, with every key: those left open are "auto". */
void ewx_config_print_open(const ew_config *config, ewx_text *text);

ew_status ewx_config_choose(const ew_problem *problem, int num_ranks,
                            const ew_config *request, const ewx_machine *machine,
                            ew_config *config_out);

/* What the choice of an epilogue's form depends on, besides the config. */
typedef struct ewx_epilogue_facts {
    bool has_norm;
    bool tiles_travel; /* over a network, or a link that emulates one */
    int64_t tile_rows; /* that this rank owns in the call */
} ewx_epilogue_facts;

/* Whether a call's epilogue is to be fused, or to follow the last tile. */
bool ewx_epilogue_fuses(const ew_config *config, const ewx_epilogue_facts *facts);

/* The GPU that policy has in mind: the machine's, or an H200 where there is none, so that
 * a plan can be looked at anywhere. */
ewx_machine ewx_machine_planned(const ewx_machine *machine);

/* The row panels that interleaving keeps in use, one per destination that has rows, and
 * their bytes when they are packed. */
int ewx_interleaved_panels(const ew_problem *problem, int num_ranks);
int64_t ewx_interleaved_panels_bytes(const ew_problem *problem, int num_ranks,
                                     const ewx_machine *machine);

/* One line per choice: what, and why. */
void ewx_spec_explain(const ewx_spec *spec, const ew_config *request,
                      const ewx_machine *machine, ewx_text *text);

/* Contributions of a rank to a tile.  With invariant=S the ranks' K together is cut into S
 * pieces; each rank has its share of them, and every piece is rounded and added as if it
 * came from a rank of its own.  So the sum does not depend on how many ranks there are.
 * For configs that are refused later, any value from 1 on. */
static inline int32_t ewx_num_pieces(const ew_config *config, int num_ranks)
{
    return config->invariant > num_ranks ? config->invariant / num_ranks : 1;
}

/* GEMM-AllReduce on GPUs, in a layer whose ranks finish rows of their own: the parts of the
 * grid of a call of m rows.  Where the walk goes down all rows in each column, the rows of
 * all owners come in turn anyway, and one part pads nothing. */
static inline int ewx_layer_num_parts(const ew_config *config, int num_ranks, int64_t m)
{
    const int64_t walked = (int64_t)config->group * config->block_m;
    return m > walked ? num_ranks : 1;
}

ew_status ewx_layout_build(const ew_problem *problem, int num_ranks,
                           const ew_config *config, ewx_layout *layout_out);

/* On GPUs, GEMM-ReduceScatter and AllGather-GEMM: whether the grid of a call of m rows
 * covers all of them together, so that a tile may hold rows of several owners.  It depends
 * on what is equal on all ranks alone, and the bits are the same. */
bool ewx_spans_owners(const ewx_spec *spec, int64_t m);

/* The grid of a call of m rows.  Of AllGather-GEMM: as the rows cross, a part for each
 * rank. */
ewx_grid ewx_spec_grid(const ewx_spec *spec, int64_t m);

/* AllGather-GEMM: the grid of the GEMM, of rows that cross by that one. */
ewx_grid ewx_gathered_grid(const ewx_spec *spec, const ewx_grid *by_ranks);

/* Bytes from the start of a slice to a tile's first element. */
static inline size_t ewx_layout_tile_offset(const ewx_spec *spec, const ewx_grid *grid,
                                            int part, ewx_tile tile)
{
    const ewx_layout *layout = &spec->layout;
    if (!layout->row_major)
        return (size_t)ewx_layout_slot(layout, part, tile) * layout->slot_bytes;
    return (size_t)ewx_matrix_element(grid, part, tile) * spec->elem_bytes;
}

#endif
