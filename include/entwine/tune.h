/* Opt-in header: finding a config by measuring, and keeping it.
 *
 * A tuning entry belongs to a key: the operation, the shape (rows rounded up to a power of
 * two, the M bucket), the ranks, the element type, the device, the library's version and a
 * hash of the backend's sources: what was found for other kernels is not used.
 * The device is what times depend on: a GPU's name, the SMs that a rank has of it and the
 * driver, or a processor's model and the cores that this process may use (affinity and
 * cgroup).  So tune the way you run: with other cores it is another key.
 * Entries are small JSON files under $ENTWINE_CACHE_DIR, else $XDG_CACHE_HOME/entwine, else
 * ~/.cache/entwine.  ew_plan_create without a config of the caller's uses the entry of its
 * key, else that of the M bucket above or below, else the built-in choice; ew_plan_explain
 * says which.  A file that cannot be read, is malformed or has another key is ignored.
 * ENTWINE_TUNING=off makes plans ignore all entries; on is as if it were unset, and
 * anything else is refused. */
#ifndef ENTWINE_TUNE_H
#define ENTWINE_TUNE_H

#include "entwine/measure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Entries ------------------------------------------------------------------------ */

#define EW_TUNING_KEY_BYTES 320
#define EW_TUNING_TEXT_BYTES 1024 /* of an entry as JSON */

typedef struct ew_tuning {
    char key[EW_TUNING_KEY_BYTES]; /* "op=gemm-rs,m=8192,n=8192,k=1024,ranks=8,..." */
    ew_config config;              /* every field chosen */
    double time_us;                /* of the config */
    double default_us;             /* of the built-in choice, in the same run */
    int64_t when;                  /* seconds since 1970 */
    char profile[64];              /* used to order the candidates; empty: none was */
} ew_tuning;

/* The key that num_ranks ranks on this machine have for the problem's M bucket.  With cuda
 * it starts CUDA in this process, as ew_gpu_count does.  EW_TUNING_KEY_BYTES are enough. */
EW_API ew_status ew_tuning_key(const ew_problem *problem, int num_ranks, ew_backend backend,
                               char *text, size_t bytes);

/* An entry as JSON and back; EW_ERR_ARGUMENT says what is wrong with a text.  What is
 * printed can be parsed. */
EW_API ew_status ew_tuning_print(const ew_tuning *tuning, char *text, size_t bytes);
EW_API ew_status ew_tuning_parse(const char *text, size_t bytes, ew_tuning *tuning_out);

/* The folder of the entries; EW_ERR_SYSTEM when it cannot be determined (no HOME). */
EW_API ew_status ew_tuning_folder(char *path, size_t bytes);

/* Path of the file that an entry with this key has: 16 hexadecimal digits and ".json".
 * While it is being written, ".tmp-" and more follow. */
EW_API ew_status ew_tuning_path(const char *key, char *path, size_t bytes);

/* Stores an entry: written beside its place, flushed, then renamed into it, so that a
 * reader sees the old one, the new one, or none. */
EW_API ew_status ew_tuning_store(const ew_tuning *tuning);

/* Reads one file, whole or not at all. */
EW_API ew_status ew_tuning_load(const char *path, ew_tuning *tuning_out);

/* ---- Tuning -------------------------------------------------------------------------- */

#define EW_TUNE_PLANS 6 /* plans that exist at once while a problem is tuned */

/* What a search cost. */
typedef struct ew_tune_effort {
    int64_t calls; /* of each rank, all candidates together */
    double seconds;
} ew_tune_effort;

typedef struct ew_tune_options {
    uint32_t struct_size;
    double budget_s; /* may be exceeded by one heat; 0: until the search ends */
    int32_t samples; /* of each candidate before slow ones are dropped; 0: chosen */
    uint32_t seed;
    /* Rank 0 writes the entry, if it is one that plans would use: nothing but the backend
     * was fixed, and no link is emulated. */
    int32_t store;
    /* Called on rank 0 after each round, counted from 1, may be NULL.  Non-zero ends the
     * search early, with the best so far. */
    int (*progress)(void *context, int round, int num_rounds, const char *best_config,
                    double best_us, double default_us);
    void *context;
    /* The method that is tuned, with the fixed fields as its base (ew_method_config). NULL:
     * what the fixed fields say. */
    const char *method;
    /* May be exceeded by one heat; 0: no limit.  Unlike with a time, a method whose calls
     * are long gets as many calls as any other. */
    int64_t budget_calls;
    ew_tune_effort *effort; /* filled on every rank; NULL: not wanted */
} ew_tune_options;
#define EW_TUNE_OPTIONS_INIT                                             \
    {                                                                    \
        sizeof(ew_tune_options), 0.0, 0, 1, 1, NULL, NULL, NULL, 0, NULL \
    }

typedef struct ew_tune_result {
    ew_tuning tuning;
    int32_t num_candidates; /* different configs that were measured */
    int32_t num_refused;    /* configs that this machine cannot run */
    int32_t complete;       /* 0: ended by the budget or by progress */
    int32_t stored;
    int32_t num_left_out; /* skipped: simulated to be over 15 % slower */
    char profile[64];     /* of that simulation; empty: none describes this machine */
} ew_tune_result;

/* Collective.  Searches the fields that `fixed` leaves open (NULL: all, for the cpu) for
 * the shortest time of a whole call, that of its slowest rank.
 *
 * Round by round one knob is turned: how tiles travel (cuda), the block, its walk, how many
 * tiles are released together (wavegroup), and who reduces, x and b.  A knob is left alone
 * where it makes no difference, so a rival method is tuned by its own knobs with the same
 * effort as ours.  In a round the best so far and other values of the knob take turns, call
 * by call, at most EW_TUNE_PLANS in a heat, and those that are clearly slower drop out
 * (more than 4 % by median, or by a sign test).  The last round confirms the best against
 * the built-in choice, what a plan has without tuning: it must gain more than a per cent to
 * replace it.
 *
 * Where a profile describes the machine (docs/SIMULATOR.md), the candidates of a round are
 * measured in the order of their simulated times, and those that would take more than 15 %
 * longer than the fastest are left out.
 *
 * The values of every candidate are checked once; wrong ones end the tuning with an error.
 * All ranks end with the same result. */
EW_API ew_status ew_tune(ew_world *world, const ew_problem *problem, const ew_config *fixed,
                         const ew_tune_options *options, ew_tune_result *result_out);

#ifdef __cplusplus
}
#endif
#endif
