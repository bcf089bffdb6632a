/* What a user's program looks like.  Compiled as C and as C++ against an installed
 * Entwine, by three ways of finding it; computes a small product and checks one element. */
#include <entwine/entwine.h>
#include <entwine/measure.h>
#include <entwine/mpi_module.h>

#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ew_last_error());
    return 1;
}

int main(void)
{
    enum { M = 5, N = 3, K = 4 };
    float A[M * K], B[N * K], C[M * N];
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    ew_config config = EW_CONFIG_INIT;
    ew_world *world = NULL;
    ew_plan *plan = NULL;
    char version[32];

    snprintf(version, sizeof version, "%d.%d.%d", EW_VERSION_MAJOR, EW_VERSION_MINOR,
             EW_VERSION_PATCH);
    if (strcmp(version, ew_version()) != 0) {
        fprintf(stderr, "header %s, library %s\n", version, ew_version());
        return 1;
    }
    for (int i = 0; i < M * K; i++)
        A[i] = 1.0f;
    for (int i = 0; i < N * K; i++)
        B[i] = 2.0f;

    if (ew_world_create(0, 1, NULL, NULL, &options, &world) != EW_OK)
        return fail("ew_world_create");
    if (ew_plan_create(world, &problem, &config, &plan) != EW_OK)
        return fail("ew_plan_create");
    if (ew_gemm_rs(plan, M, A, B, C, NULL) != EW_OK)
        return fail("ew_gemm_rs");
    ew_plan_destroy(plan);
    ew_world_destroy(world);
    if (C[M * N - 1] != 2.0f * K) {
        fprintf(stderr, "C is %g, not %g\n", (double)C[M * N - 1], 2.0 * K);
        return 1;
    }
    return 0;
}
