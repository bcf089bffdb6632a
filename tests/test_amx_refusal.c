/* Linux refuses AMX to a process: another kernel serves, the results are right, and the
 * reason is told.  The refusal is a seccomp filter in a child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/gemm.h"
#include "base/dtype.h"
#include "entwine/measure.h"

enum { RIGHT = 0, WRONG = 1, CANNOT = 77 };

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static bool processor_has_amx(void)
{
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 24 & 1) &&
           (edx >> 22 & 1);
}

/* From now on arch_prctl(ARCH_REQ_XCOMP_PERM) fails with `error`. */
static bool refuse_tiles(int error)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023 };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH_REQ_XCOMP_PERM, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned int)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

#else

enum { EPERM = 1, ENOSPC = 28 };

static bool processor_has_amx(void)
{
    return false;
}

static bool refuse_tiles(int error)
{
    (void)error;
    return false;
}

#endif

/* One element of a product of ones. */
static bool multiplies(ew_dtype dtype)
{
    enum { DEPTH = 70 };
    const ewx_gemm gemm = ewx_gemm_build(ewx_kernel_select(dtype, NULL), dtype, DEPTH);
    const uint16_t one = dtype == EW_BF16 ? ewx_bf16_from_f32(1) : ewx_fp16_from_f32(1);
    const uint16_t want =
        dtype == EW_BF16 ? ewx_bf16_from_f32(DEPTH) : ewx_fp16_from_f32(DEPTH);
    uint16_t ones[DEPTH], got = 0;
    for (int k = 0; k < DEPTH; k++)
        ones[k] = one;
    void *a = malloc(ewx_packed_a_bytes(&gemm, 1)),
         *b = malloc(ewx_packed_b_bytes(&gemm, 1));
    void *scratch = malloc(ewx_gemm_scratch_bytes(&gemm, 1, 1));
    ewx_pack_a(&gemm, ones, DEPTH, 1, 1, a);
    ewx_pack_b(&gemm, ones, DEPTH, 1, 1, b);
    ewx_gemm_tile(&gemm, a, b, 1, 1, &got, 1, scratch);
    free(a);
    free(b);
    free(scratch);
    return got == want;
}

/* In a child. */
static int check_refused(int error, const char *reason)
{
    if (!processor_has_amx() || !refuse_tiles(error))
        return CANNOT;
    for (int dtype = EW_BF16; dtype <= EW_FP16; dtype++) {
        const char *name = ew_cpu_kernel_name((ew_dtype)dtype);
        const char *told = ew_cpu_kernel_refusal((ew_dtype)dtype);
        if (strncmp(name, "amx", 3) == 0 || !told || !strstr(told, reason) ||
            !multiplies((ew_dtype)dtype))
            return WRONG;
    }
    return ew_cpu_kernel_refusal(EW_FP32) ? WRONG : RIGHT;
}

static void refused(int error, const char *reason)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(check_refused(error, reason));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT)
        skip();
    assert_int_equal(WEXITSTATUS(status), RIGHT);
}

static void another_kernel_serves(void **state)
{
    (void)state;
    refused(EPERM, "Linux refuses AMX");
}

static void a_small_signal_stack_is_named(void **state)
{
    (void)state;
    refused(ENOSPC, "a signal stack");
}

/* `test_amx_refusal PROGRAM ARGUMENTS` runs it without AMX. */
int main(int argc, char **argv)
{
    if (argc > 1) {
        refuse_tiles(EPERM);
        execvp(argv[1], argv + 1);
        return 127;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_kernel_serves),
        cmocka_unit_test(a_small_signal_stack_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
