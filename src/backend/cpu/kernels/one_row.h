/* One row of A and two panels of B at a time, for kernels that include this.  They define
 *
 *     element, MR, NR, NARROW_NR, KR   as packed
 *     ROW_CODE                         the attributes that their instructions need
 *     ROW_KS                           k's whose B is whole cache lines
 *     strip                            the sums of a panel, of NR or NARROW_NR columns
 *     load_strip, store_strip          from and to memory
 *     row_vector, load_row             KR elements of the row, as often as is useful
 *     multiply_strip                   continues the sums by KR k's
 *
 * Widths are constants; a width of 0 is no panel. */
#ifndef EWX_CPU_ONE_ROW_H
#define EWX_CPU_ONE_ROW_H

/* What lies behind the panels is fetched meanwhile: to look ahead in each of them is
 * slower. Into L3: a Neoverse V1 reads 41 GB/s so, and 34 by way of L2, where every
 * prefetch takes the time of a load. */
static inline __attribute__((always_inline)) const char *fetch_behind(const char *at,
                                                                      int bytes)
{
    enum { CACHE_LINE = 64, INTO_L3 = 1 };
    for (int line = 0; line < bytes; line += CACHE_LINE)
        __builtin_prefetch(at + line, 0, INTO_L3);
    return at + bytes;
}

ROW_CODE static inline __attribute__((always_inline)) void multiply_panels(
    int width0, int width1, int64_t depth, const element *a, const element *b, float *acc,
    bool accumulate)
{
    const int width = width0 + width1;
    const element *b0 = b, *b1 = b + depth * width0;
    const char *behind = (const char *)(b + depth * width);
    strip sum0 = load_strip(acc, width0, accumulate);
    strip sum1 = load_strip(acc + width0, width1, accumulate);
    for (int64_t k = 0; k < depth; k += KR) {
        if (k % ROW_KS == 0)
            behind = fetch_behind(behind, ROW_KS * width * (int)sizeof *b);
        const row_vector x = load_row(a);
        sum0 = multiply_strip(sum0, x, b0, width0);
        sum1 = multiply_strip(sum1, x, b1, width1);
        a += MR * KR;
        b0 += width0 * KR;
        b1 += width1 * KR;
    }
    store_strip(sum0, acc, width0);
    store_strip(sum1, acc + width0, width1);
}

ROW_CODE static void multiply_row(int64_t depth, const void *a, const void *b, int64_t cols,
                                  float *acc, bool accumulate)
{
    enum { PAIR = 2 * NR };
    const element *panel = b;
    for (; cols > NR + NARROW_NR; cols -= PAIR, acc += PAIR, panel += PAIR * depth)
        multiply_panels(NR, NR, depth, a, panel, acc, accumulate);
    if (cols > NR)
        multiply_panels(NR, NARROW_NR, depth, a, panel, acc, accumulate);
    else if (cols > NARROW_NR)
        multiply_panels(NR, 0, depth, a, panel, acc, accumulate);
    else if (cols > 0)
        multiply_panels(NARROW_NR, 0, depth, a, panel, acc, accumulate);
}

#endif
