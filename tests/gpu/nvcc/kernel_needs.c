/* kernel_needs LOG...: compares what plan/occupancy.h says of our kernels with what nvcc
 * reported when it compiled them (cmake/nvcc-keep.sh), and fails where ptxas could not keep
 * several wgmmas in flight, which costs a fifth of the speed.  Needs no GPU.  LOGs are
 * named after their sources; those of other kernels than the GEMMs, the reducers and the
 * mover are passed over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../needs.h"
#include "backend/cuda/kernels/kernels.h"

enum { LINE_BYTES = 1024, MOST_NUMBERS = 4 };

/* A source with kernels that occupancy.h knows. */
typedef struct source {
    const char *log;    /* how the name of its log ends */
    const char *kernel; /* as it is mangled, up to the template's arguments */
    /* From the numbers among these: what its launches take, and what is written. */
    ewx_cuda_entry (*entry)(const int *numbers);
    ewx_kernel_needs (*figure)(const int *numbers);
    bool (*holds)(ewx_kernel_needs figure, ewx_kernel_needs compiled);
    int least_kernels;
} source;

static ewx_cuda_entry sm90_entry(const int *numbers)
{
    return ewx_cuda_gemm_sm90(EW_OP_GEMM_RS, EWX_CUDA_ONE_WEIGHT, EW_BF16,
                              numbers[0] * EWX_TILE_N, numbers[1]);
}

static ewx_kernel_needs sm90_figure(const int *numbers)
{
    return ewx_gemm_needs(EW_KERNEL_SM90, numbers[0] * EWX_TILE_N);
}

static ewx_cuda_entry decode_entry(const int *numbers)
{
    return ewx_cuda_gemm_decode_sm90(EW_OP_GEMM_RS, EW_BF16, numbers[0]);
}

static ewx_kernel_needs decode_bound(const int *numbers)
{
    (void)numbers;
    return ewx_gemm_needs(EW_KERNEL_SM90, 2 * EWX_TILE_N);
}

static ewx_cuda_entry sm80_entry(const int *numbers)
{
    return ewx_cuda_gemm_sm80(EW_OP_GEMM_RS, EWX_CUDA_ONE_WEIGHT, EW_BF16, numbers[0]);
}

static ewx_kernel_needs sm80_figure(const int *numbers)
{
    return ewx_gemm_needs(EW_KERNEL_SM80, numbers[0]);
}

static ewx_cuda_entry reducer_entry(const int *numbers)
{
    return ewx_cuda_reducer(EW_BF16, numbers[1] ? numbers[1] : 3, numbers[0]);
}

static ewx_kernel_needs reducer_figure(const int *numbers)
{
    return ewx_reducer_needs(numbers[0]);
}

static ewx_cuda_entry allreducer_entry(const int *numbers)
{
    return ewx_cuda_allreducer(EW_BF16, numbers[1] ? numbers[1] : 3, numbers[0]);
}

static ewx_cuda_entry mover_entry(const int *numbers)
{
    return ewx_cuda_mover(numbers[0]);
}

static ewx_cuda_entry between_copies_entry(const int *numbers)
{
    (void)numbers;
    return ewx_cuda_between_copies();
}

/* What a CTA of 384 threads with 168 registers leaves of an SM. */
static ewx_kernel_needs beside_cublas(const int *numbers)
{
    (void)numbers;
    return (ewx_kernel_needs){.threads = 32, .registers = 32};
}

static ewx_cuda_entry row_allreducer_entry(const int *numbers)
{
    return ewx_cuda_row_allreducer(EW_BF16, numbers[1] ? numbers[1] : 3, numbers[0]);
}

/* With a word of shared memory. */
static ewx_kernel_needs row_reducer_figure(const int *numbers)
{
    ewx_kernel_needs needs = ewx_reducer_needs(numbers[0]);
    needs.shared_bytes += (int)sizeof(int);
    return needs;
}

static const source sources[] = {
    {"gemm_sm90.log", "4gemmI", sm90_entry, sm90_figure, needs_hold, 2 * 8},
    {"gemm_sm90_pieces.log", "4gemmI", sm90_entry, sm90_figure, needs_hold, 2 * 8},
    {"gemm_decode_sm90.log", "6decodeI", decode_entry, decode_bound, needs_no_more, 2 * 8},
    {"gemm_sm80.log", "4gemmI", sm80_entry, sm80_figure, needs_hold, 2 * 4},
    {"mover.log", "5moverI", mover_entry, reducer_figure, needs_hold, 2 * 3},
    {"mover.log", "14between_copies", between_copies_entry, beside_cublas, needs_no_more,
     2 * 1},
    {"reducer.log", "7reducerI", reducer_entry, reducer_figure, needs_hold, 2 * 24},
    {"allreducer.log", "10allreducerI", allreducer_entry, reducer_figure, needs_hold,
     2 * 24},
    {"row_allreducer.log", "14row_allreducerI", row_allreducer_entry, row_reducer_figure,
     needs_hold, 2 * 16}};

/* ---- One kernel ---- */

/* The numbers among a template's arguments: Li256E is 256. */
static bool read_numbers(const char *mangled, const char *kernel, int *numbers)
{
    const char *at = strstr(mangled, kernel);
    memset(numbers, 0, MOST_NUMBERS * sizeof *numbers);
    if (!at)
        return false;
    for (int i = 0; i < MOST_NUMBERS && (at = strstr(at, "Li")); i++) {
        at += 2;
        numbers[i] = atoi(at);
    }
    return true;
}

/* "Used 64 registers, used 1 barriers, 256 bytes smem": `what` follows the number. */
static int number_before(const char *line, const char *what)
{
    const char *at = strstr(line, what);
    if (!at)
        return 0;
    while (at > line && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return atoi(at);
}

static bool judge(const source *s, const char *mangled, const int *numbers,
                  const char *usage)
{
    const ewx_cuda_entry entry = s->entry(numbers);
    const ewx_kernel_needs figure = s->figure(numbers);
    const ewx_kernel_needs compiled = {entry.threads, number_before(usage, " registers"),
                                       number_before(usage, " bytes smem") +
                                           entry.dynamic_smem};
    if (s->holds(figure, compiled))
        return true;
    printf("%s\n  %d threads, %d registers, %d bytes; plan/occupancy.h has %d, %d, %d\n",
           mangled, compiled.threads, compiled.registers, compiled.shared_bytes,
           figure.threads, figure.registers, figure.shared_bytes);
    return false;
}

/* ---- A log ---- */

static bool is_serialized(const char *line)
{
    return strstr(line, "wgmma.mma_async instructions are serialized") != NULL;
}

static bool judge_log(const source *s, FILE *log)
{
    char line[LINE_BYTES], mangled[LINE_BYTES] = "";
    int numbers[MOST_NUMBERS], count = 0;
    bool ok = true, wanted = false;
    while (fgets(line, sizeof line, log)) {
        if (strstr(line, "Compiling entry function '")) {
            wanted = read_numbers(line, s->kernel, numbers);
            snprintf(mangled, sizeof mangled, "%.*s", (int)strcspn(line, "\n"), line);
        } else if (is_serialized(line)) {
            printf("%s: %s", s->log, line);
            ok = false;
        } else if (wanted && strstr(line, "Used ")) {
            ok = judge(s, mangled, numbers, line) && ok;
            count++;
        }
    }
    if (count < s->least_kernels) {
        printf("%s: %d kernels, at least %d were expected\n", s->log, count,
               s->least_kernels);
        ok = false;
    }
    printf("%s: %d kernels\n", s->log, count);
    return ok;
}

static bool judge_file(const source *s, const char *path)
{
    FILE *log = fopen(path, "r");
    if (!log) {
        perror(path);
        return false;
    }
    const bool ok = judge_log(s, log);
    fclose(log);
    return ok;
}

/* Would it notice? */
static bool self_test(void)
{
    const ewx_kernel_needs figure = {256, 128, 49408};
    const struct {
        ewx_kernel_needs compiled;
        bool holds;
    } cases[] = {
        {{256, 128, 49408}, true},  {{256, 121, 49300}, true},  {{256, 116, 49408}, true},
        {{256, 112, 49408}, false}, {{256, 129, 49408}, false}, {{128, 128, 49408}, false},
        {{256, 128, 49409}, false}, {{256, 128, 49152}, false},
    };
    if (!is_serialized(
            "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async "
            "instructions are serialized due to ...")) {
        printf("self-test: a serialized wgmma is not noticed\n");
        return false;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (needs_hold(figure, cases[i].compiled) != cases[i].holds) {
            printf("self-test: case %zu is judged wrongly\n", i);
            return false;
        }
    return true;
}

int main(int argc, char **argv)
{
    bool ok = self_test();
    size_t found = 0;
    for (int i = 1; i < argc; i++)
        for (size_t s = 0; s < sizeof sources / sizeof sources[0]; s++) {
            const char *name = strrchr(argv[i], '/');
            if (strcmp(name ? name + 1 : argv[i], sources[s].log) != 0)
                continue;
            ok = judge_file(&sources[s], argv[i]) && ok;
            found++;
        }
    if (found != sizeof sources / sizeof sources[0]) {
        printf("%zu of %zu logs were given\n", found, sizeof sources / sizeof sources[0]);
        ok = false;
    }
    return ok ? 0 : 1;
}
