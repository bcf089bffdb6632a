/* How every layer reports failure: one status, and a text set once by whoever first
 * knows the cause.  Callers pass the status on and leave the text alone. */
#ifndef EWX_BASE_STATUS_H
#define EWX_BASE_STATUS_H

#include "entwine/entwine.h"

/* Sets the calling thread's error text and returns `status`.  A text is one line that
 * names the offending value, and where there is a remedy a second: "\n  fix: ...". */
__attribute__((format(printf, 2, 3))) ew_status ewx_fail(ew_status status,
                                                         const char *format, ...);

#define EW_TRY(expr)                             \
    do {                                         \
        const ew_status ew_try_status_ = (expr); \
        if (ew_try_status_ != EW_OK)             \
            return ew_try_status_;               \
    } while (0)

/* For functions with one `out:` label that undoes what was built. */
#define EW_TRY_TO(status, expr, label) \
    do {                               \
        (status) = (expr);             \
        if ((status) != EW_OK)         \
            goto label;                \
    } while (0)

#endif
