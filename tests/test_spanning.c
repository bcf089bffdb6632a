/* Calls of few rows, in which a tile spans the rows of several owners: each of these sums
 * its own rows of it, or gathers the others', once, and flags and slots suffice. */
#include "grid_check.h"
#include "harness.h"

#include <stdbool.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "plan/policy.h"
#include "plan/spec.h"

enum { SPANNING_W = 8, FEW_ROWS = 600, MAX_ROWS = 9000, SPANNED_COLS = 5 };

static ewx_spec cuda_spec_of(ew_op op, int W, int64_t max_m, const char *text, int hosts)
{
    const ewx_machine machine = {.cores = 2, .hosts = hosts, .gpu_sms = 16, .gpu_arch = 90};
    ew_problem problem = EW_PROBLEM(max_m, SPANNED_COLS * EWX_TILE_N - 8, 64, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    ewx_spec spec;
    problem.op = op;
    assert_int_equal(ew_config_parse(text, &config), EW_OK);
    config.backend = EW_BACKEND_CUDA;
    assert_int_equal(ewx_spec_build(&problem, W, &config, &machine, &spec), EW_OK);
    return spec;
}

static ewx_spec cuda_spec(int W, int64_t max_m, const char *text, int hosts)
{
    return cuda_spec_of(EW_OP_GEMM_RS, W, max_m, text, hosts);
}

/* What a producer flags and an owner waits for, by owner and task. */
static bool flagged[SPANNING_W][MAX_ROWS / EWX_TILE_M * SPANNED_COLS + SPANNED_COLS];

/* The flags and slots of every tile, which must lie inside the heap. */
static int64_t flag_tiles(const ewx_spec *spec, const ewx_grid *grid)
{
    const ewx_layout *layout = &spec->layout;
    const int64_t units =
        (int64_t)((layout->slice_offset[0] - layout->flags_offset) / sizeof(uint32_t)) /
        spec->num_ranks;
    int64_t flags = 0;
    memset(flagged, 0, sizeof flagged);
    for (int64_t task = 0; task < ewx_part_tiles(grid, 0); task++) {
        const ewx_tile tile = ewx_task_tile(grid, 0, task);
        const ewx_owners owners = ewx_tile_owners(grid, spec->num_ranks, tile);
        EXPECT(grid, task < units && ewx_layout_slot(layout, 0, tile) < layout->num_slots);
        EXPECT(grid, owners.first >= 0 && owners.first <= owners.last &&
                         owners.last < spec->num_ranks);
        for (int owner = owners.first; owner <= owners.last; owner++, flags++)
            flagged[owner][task] = true;
    }
    return flags;
}

/* The rows of a tile that a rank sums are its own; each is noted in `sums`. */
static void check_own_rows(const ewx_grid *grid, const ewx_share *share, ewx_tile tile,
                           uint8_t (*sums)[SPANNED_COLS], int64_t first, int64_t count)
{
    const ewx_tile_rows rows = ewx_share_tile_rows(grid, share, tile);
    EXPECT(grid, rows.first >= 0 && rows.first < rows.end);
    for (int64_t row = rows.first; row < rows.end; row++) {
        const int64_t at = tile.row * EWX_TILE_M + row;
        EXPECT(grid, at >= first && at < first + count);
        EXPECT(grid, rows.place + row - rows.first == at - first);
        sums[at][tile.col]++;
    }
}

static void check_spanning(const ewx_spec *spec, int64_t m)
{
    static uint8_t sums[MAX_ROWS][SPANNED_COLS];
    static int64_t positions[MAX_ROWS / EWX_TILE_M * SPANNED_COLS + SPANNED_COLS];
    const ewx_grid grid = ewx_spec_grid(spec, m);
    EXPECT(&grid, grid.num_parts == 1 &&
                      ewx_part_tile_rows(&grid, 0) == ewx_div_up(m, EWX_TILE_M));
    check_coverage(&grid, positions);
    memset(sums, 0, sizeof sums[0] * (size_t)m);
    int64_t awaited = 0;
    const int64_t flags = flag_tiles(spec, &grid);
    for (int rank = 0; rank < spec->num_ranks; rank++) {
        int64_t first, count;
        const ewx_share share = ewx_spec_share(spec, m, rank);
        assert_int_equal(ew_owned_rows(m, spec->num_ranks, rank, &first, &count), EW_OK);
        EXPECT(&grid, share.ownership == EWX_OWNS_ROWS && share.num_rows == count);
        for (int64_t i = 0; i < share.count; i++, awaited++) {
            const ewx_tile tile = ewx_share_tile_in_columns(&grid, &share, i);
            EXPECT(&grid, flagged[rank][ewx_tile_task(&grid, 0, tile)]);
            check_own_rows(&grid, &share, tile, sums, first, count);
        }
    }
    EXPECT(&grid, awaited == flags);
    for (int64_t row = 0; row < m; row++)
        for (int col = 0; col < SPANNED_COLS; col++)
            EXPECT(&grid, sums[row][col] == 1);
}

/* Every row of every tile is flagged to its owner, and summed by it, once. */
static void few_rows_span_owners(void **state)
{
    (void)state;
    for (int W = 1; W <= SPANNING_W; W++) {
        const ewx_spec spec = cuda_spec(W, MAX_ROWS, "", 1);
        int spanning = 0;
        for (int64_t m = 1; m <= MAX_ROWS; m += m < FEW_ROWS ? 1 : 61) {
            const bool spans = ewx_spans_owners(&spec, m);
            const ewx_grid grid = ewx_spec_grid(&spec, m);
            assert_int_equal(grid.block_cols,
                             m <= EWX_DECODE_ROWS && grid.num_parts == 1 ? 1 : 2);
            if (W > 1 && m <= EWX_TILE_M)
                assert_true(spans);
            if (spans)
                check_spanning(&spec, m);
            else
                assert_int_equal(ewx_spec_grid(&spec, m).num_parts, W);
            spanning += spans;
        }
        assert_true(W == 1 ? spanning == 0 : spanning > EWX_TILE_M);
    }
}

/* A plan for few rows has few slots, and they suffice. */
static void slots_suffice_for_every_largest_call(void **state)
{
    (void)state;
    for (int W = 2; W <= SPANNING_W; W++)
        for (int64_t max_m = 1; max_m <= FEW_ROWS; max_m++) {
            const ewx_spec spec = cuda_spec(W, max_m, "", 1);
            if (ewx_spans_owners(&spec, max_m))
                check_spanning(&spec, max_m);
        }
}

typedef struct spanning_case {
    const char *config;
    int hosts;
    bool spans;
} spanning_case;

static void check_spanning_cases(ew_op op, const spanning_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const ewx_spec spec = cuda_spec_of(op, 4, 4096, cases[i].config, cases[i].hosts);
        if (ewx_spans_owners(&spec, 8) != cases[i].spans)
            fail_msg("%s, %s on %d hosts", ew_op_name(op), cases[i].config, cases[i].hosts);
        assert_false(ewx_spans_owners(&spec, 4096)); /* nothing would be gained */
        assert_false(ewx_spans_owners(&spec, 0));
    }
}

static void only_calls_that_can_span_owners(void **state)
{
    static const spanning_case reduced[] = {
        {"", 1, true},
        {"kernel=sm80", 1, true},
        {"block=128x128", 1, true},
        {"pool=after,release=1", 1, true},
        {"", 2, false},
        {"transport=push", 1, false},
        {"transport=copy", 1, false},
        {"release=output", 1, true},
        {"release=2", 1, false},
        {"release=partition", 1, false},
        {"order=default", 1, false},
        {"producer=blas", 1, false},
        {"launches=unit", 1, false},
    };
    static const spanning_case gathered[] = {
        {"", 1, true},
        {"kernel=sm80", 1, true},
        {"release=output,pool=after", 1, true},
        {"", 2, false},
        {"transport=copy", 1, false},
        {"order=contiguous", 1, false},
        {"order=default", 1, false},
        {"producer=blas", 1, false},
    };
    (void)state;
    check_spanning_cases(EW_OP_GEMM_RS, reduced, sizeof reduced / sizeof reduced[0]);
    check_spanning_cases(EW_OP_AG_GEMM, gathered, sizeof gathered / sizeof gathered[0]);
}

/* A row of tiles awaits exactly the panels that hold rows of it. */
static void check_panels(const ewx_grid *grid, int W)
{
    for (int src = 0; src < W; src++) {
        int64_t first, count;
        assert_int_equal(ew_owned_rows(grid->rows, W, src, &first, &count), EW_OK);
        for (int tile_row = 0; tile_row < ewx_div_up(grid->rows, EWX_TILE_M); tile_row++) {
            const ewx_panels panels = ewx_panels_in_tile(grid, W, src, tile_row);
            for (int64_t panel = 0; panel < ewx_div_up(count, EWX_TILE_M); panel++) {
                const int64_t begin = first + panel * EWX_TILE_M;
                const int64_t end = ewx_min64(begin + EWX_TILE_M, first + count);
                const bool has_rows =
                    begin < (tile_row + 1) * EWX_TILE_M && end > tile_row * EWX_TILE_M;
                EXPECT(grid, has_rows == (panels.first <= panel && panel < panels.end));
            }
        }
    }
}

/* How many ranks' rows come to a rank before those of `src`: its own are the first. */
static int turn_of(int W, int rank, int src)
{
    return (rank - src + W) % W;
}

/* Every block once, and none before another one whose rows are all there earlier, but for
 * those of a set; two neighbours share a column where every set is even. */
static void check_spanning_order(const ewx_grid *grid, int W, int rank)
{
    bool seen[MAX_ROWS / EWX_TILE_M * SPANNED_COLS + SPANNED_COLS] = {false};
    const int64_t rows = ewx_part_block_rows(grid, 0);
    const bool at_once = ewx_gathers_at_once(grid->rows, W);
    const int64_t early = at_once ? 0 : ewx_early_spanning(grid);
    EXPECT(grid, at_once || (early >= ewx_min64(2, rows) && early <= 3));
    EXPECT(grid, !at_once || grid->group >= rows);
    int last_turn = 0;
    for (int64_t i = 0, last_set = 0, turn = 0; i < ewx_num_blocks(grid); i++) {
        const ewx_block block = ewx_gather_block(grid, W, rank, i);
        EXPECT(grid, block.part == 0 && block.row >= 0 && block.row < rows);
        bool *place = &seen[block.row * grid->blocks_per_row + block.col];
        EXPECT(grid, block.col >= 0 && block.col < grid->blocks_per_row && !*place);
        *place = true;
        const int64_t set = set_behind(grid, i / grid->blocks_per_row, early, rows);
        if (set != last_set)
            last_turn = (int)turn;
        last_set = set;
        const ewx_owners owners = ewx_tile_owners(grid, W, (ewx_tile){block.row, 0});
        int latest = 0;
        for (int src = owners.first; src <= owners.last; src++)
            latest = turn_of(W, rank, src) > latest ? turn_of(W, rank, src) : latest;
        EXPECT(grid, latest >= last_turn);
        turn = latest > turn ? latest : turn;
        const bool is_second = rows % 2 == 0 && grid->group % 2 == 0 && i % 2 == 1;
        EXPECT(grid, !is_second || block.col == ewx_gather_block(grid, W, rank, i - 1).col);
    }
}

/* A rank pushes all chunks once to every rank, itself the first, in the order in which they
 * come to it. */
static void check_spanning_pushes(const ewx_grid *grid, int rank)
{
    enum { CHUNKS = 3, MOST = MAX_ROWS / EWX_TILE_M + 1 };
    bool seen[SPANNING_W][MOST][CHUNKS] = {{{false}}};
    const bool at_once = ewx_gathers_at_once(grid->rows, grid->num_parts);
    const int64_t panels = ewx_part_block_rows(grid, rank);
    ewx_push last = {.dst = rank};
    for (int64_t i = 0; i < panels * grid->num_parts * CHUNKS; i++) {
        const ewx_push push = ewx_gather_push_spanning(grid, rank, CHUNKS, i);
        EXPECT(grid, push.row >= 0 && push.row < panels && push.chunk < CHUNKS);
        EXPECT(grid, push.dst >= 0 && push.dst < grid->num_parts);
        EXPECT(grid, !seen[push.dst][push.row][push.chunk]);
        seen[push.dst][push.row][push.chunk] = true;
        const int turn = turn_of(grid->num_parts, push.dst, rank);
        const int last_turn = turn_of(grid->num_parts, last.dst, rank);
        EXPECT(grid, at_once ? push.chunk >= last.chunk : turn >= last_turn);
        last = push;
    }
}

static void gathered_tiles_await_all_their_rows(void **state)
{
    static int64_t positions[MAX_ROWS / EWX_TILE_M * SPANNED_COLS + SPANNED_COLS];
    (void)state;
    for (int W = 1; W <= SPANNING_W; W++) {
        const ewx_spec spec = cuda_spec_of(EW_OP_AG_GEMM, W, MAX_ROWS, "", 1);
        int spanning = 0;
        for (int64_t m = 1; m <= MAX_ROWS; m += m < FEW_ROWS ? 1 : 61) {
            const ewx_grid crossing = ewx_spec_grid(&spec, m);
            const ewx_grid grid = ewx_gathered_grid(&spec, &crossing);
            EXPECT(&grid, crossing.num_parts == W);
            if (!ewx_spans_owners(&spec, m)) {
                EXPECT(&grid, grid.num_parts == W);
                continue;
            }
            spanning++;
            EXPECT(&grid, grid.num_parts == 1 && grid.cols == crossing.cols);
            EXPECT(&grid,
                   ewx_num_blocks(&grid) < ewx_num_blocks(&crossing) || m <= EWX_TILE_M);
            check_coverage(&grid, positions);
            for (int rank = 0; rank < W; rank++) {
                check_spanning_order(&grid, W, rank);
                check_spanning_pushes(&crossing, rank);
            }
            check_panels(&grid, W);
        }
        assert_true(W == 1 ? spanning == 0 : spanning > EWX_TILE_M);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_span_owners),
        cmocka_unit_test(slots_suffice_for_every_largest_call),
        cmocka_unit_test(only_calls_that_can_span_owners),
        cmocka_unit_test(gathered_tiles_await_all_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
