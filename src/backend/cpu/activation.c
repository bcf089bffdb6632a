/* Vectors by hand, for the reason given in reduce.c, and an exponential of our own: that of
 * the C library has no vectors, and other bits on another system.  A product and the sum it
 * goes into are two statements, as in epilogue_math.c. */
#include "backend/cpu/activation.h"

#include "backend/cpu/kernels/convert.h"

/* The functions below are compiled once for each element type and activation. */
#define SPECIALISED static inline __attribute__((always_inline))

/* ---- Functions of four values ---- */

SPECIALISED ewx_floats four(float value)
{
    return (ewx_floats){value, value, value, value};
}

SPECIALISED ewx_floats choose(ewx_masks mask, ewx_floats yes, ewx_floats no)
{
    return (ewx_floats)ewx_words_choose(mask, (ewx_words)yes, (ewx_words)no);
}

/* 2 to the power of whole numbers from -126 to 127. */
SPECIALISED ewx_floats power_of_two(ewx_words exponent)
{
    return (ewx_floats)((exponent + 127u) << 23);
}

/* exp(r) for |r| up to ln(2) / 2: its Taylor polynomial of degree 7. */
SPECIALISED ewx_floats exp_near_zero(ewx_floats r)
{
    static const float factors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6,
                                    1.0f / 2,   1.0f,       1.0f};
    ewx_floats sum = four(1.0f / 5040);
    for (unsigned i = 0; i < sizeof factors / sizeof *factors; i++) {
        const ewx_floats product = sum * r;
        sum = product + factors[i];
    }
    return sum;
}

/* exp(x) for x up to 0, as 2^n exp(r) with x = n ln(2) + r.  What is too small for fp32
 * becomes 0. */
SPECIALISED ewx_floats exp_of_negative(ewx_floats x)
{
    const float whole = 0x1.8p23f; /* added to a small number, leaves its whole part */
    const float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
    x = choose(x < -104.0f, four(-104.0f), x);
    const ewx_floats turns = x * 0x1.715476p+0f;
    const ewx_floats shifted = turns + whole;
    const ewx_floats n = shifted - whole;
    const ewx_floats high = n * ln2_high, low = n * ln2_low;
    const ewx_floats rest = x - high;
    const ewx_words exponent = (ewx_words)shifted - 0x4b400000u;
    const ewx_words half = (ewx_words)((ewx_masks)exponent >> 1);
    /* In two steps: the result may be subnormal. */
    return exp_near_zero(rest - low) * power_of_two(half) * power_of_two(exponent - half);
}

/* x / (1 + exp(-t)), without an exp that overflows. */
SPECIALISED ewx_floats times_sigmoid(ewx_floats x, ewx_floats t)
{
    const ewx_floats e = exp_of_negative((ewx_floats)((ewx_words)t | 0x80000000u));
    return x * (choose(t < 0.0f, e, four(1.0f)) / (1.0f + e));
}

SPECIALISED ewx_floats apply(ew_activation activation, ewx_floats x)
{
    if (activation == EW_ACTIVATION_NONE)
        return x;
    if (activation == EW_ACTIVATION_SILU)
        return times_sigmoid(x, x);
    /* (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)). */
    const ewx_floats square = x * x;
    const ewx_floats cubic = square * 0x1.6e4e26p-5f; /* 0.044715 */
    const ewx_floats inner = x * (1.0f + cubic);
    return times_sigmoid(x, inner * 0x1.988454p+0f); /* 2 sqrt(2 / pi) */
}

/* ---- Tiles ---- */

SPECIALISED void activate_octet(ew_dtype dtype, ew_activation activation, const void *gate,
                                const void *up, void *c, int64_t at)
{
    ewx_octet x = ewx_octet_load(dtype, gate, at);
    x = (ewx_octet){apply(activation, x.low), apply(activation, x.high)};
    if (up) {
        const ewx_octet factor = ewx_octet_load(dtype, up, at);
        x = (ewx_octet){x.low * factor.low, x.high * factor.high};
    }
    ewx_octet_store(dtype, x, c, at);
}

SPECIALISED void activate_row(ew_dtype dtype, ew_activation activation, const char *gate,
                              const char *up, char *c, int64_t cols)
{
    const size_t elem = dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    int64_t at = 0;
    for (; at + EWX_OCTET <= cols; at += EWX_OCTET)
        activate_octet(dtype, activation, gate, up, c, at);
    if (at == cols)
        return;
    float gates[EWX_OCTET] = {0}, ups[EWX_OCTET] = {0}, results[EWX_OCTET];
    const size_t before = (size_t)at * elem, rest = (size_t)(cols - at) * elem;
    memcpy(gates, gate + before, rest);
    if (up)
        memcpy(ups, up + before, rest);
    activate_octet(dtype, activation, gates, up ? ups : NULL, results, 0);
    memcpy(c + before, results, rest);
}

SPECIALISED void activate_rows(ew_dtype dtype, ew_activation activation, int64_t rows,
                               int64_t cols, ewx_matrix_tile gate, ewx_matrix_tile up,
                               ewx_matrix_tile c)
{
    const int64_t elem = dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    for (int64_t row = 0; row < rows; row++)
        activate_row(dtype, activation, (const char *)gate.at + row * gate.stride * elem,
                     up.at ? (const char *)up.at + row * up.stride * elem : NULL,
                     (char *)c.at + row * c.stride * elem, cols);
}

SPECIALISED void activate(ew_dtype dtype, ew_activation activation, int64_t rows,
                          int64_t cols, ewx_matrix_tile gate, ewx_matrix_tile up,
                          ewx_matrix_tile c)
{
    switch (activation) {
    case EW_ACTIVATION_NONE:
        activate_rows(dtype, EW_ACTIVATION_NONE, rows, cols, gate, up, c);
        break;
    case EW_ACTIVATION_SILU:
        activate_rows(dtype, EW_ACTIVATION_SILU, rows, cols, gate, up, c);
        break;
    case EW_ACTIVATION_GELU_TANH:
        activate_rows(dtype, EW_ACTIVATION_GELU_TANH, rows, cols, gate, up, c);
        break;
    }
}

void ewx_activate_tile(ew_dtype dtype, ew_activation activation, int64_t rows, int64_t cols,
                       ewx_matrix_tile gate, ewx_matrix_tile up, ewx_matrix_tile c)
{
    switch (dtype) {
    case EW_FP32:
        activate(EW_FP32, activation, rows, cols, gate, up, c);
        break;
    case EW_BF16:
        activate(EW_BF16, activation, rows, cols, gate, up, c);
        break;
    case EW_FP16:
        activate(EW_FP16, activation, rows, cols, gate, up, c);
        break;
    }
}
