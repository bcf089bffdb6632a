#include "base/handle.h"

#include "base/status.h"

static const char *const names[] = {NULL, "world", "plan", "weight"};

/* The kind of which this is the word, or 0. */
static ewx_kind kind_of(uint64_t word)
{
    for (int kind = EWX_KIND_WORLD; kind <= EWX_KIND_WEIGHT; kind++)
        if (word == ewx_handle_word((ewx_kind)kind))
            return (ewx_kind)kind;
    return (ewx_kind)0;
}

ew_status ewx_handle_refuse(const void *object, ewx_kind kind, const char *function)
{
    const char *name = names[kind];
    if (!object)
        return ewx_fail(EW_ERR_ARGUMENT, "%s needs a %s", function, name);
    const uint64_t word = ewx_handle_read(object);
    if (word == (ewx_handle_word(kind) | EWX_HANDLE_GONE))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%s was given a %s that has been destroyed\n"
                        "  fix: do not use it any more; destroy plans and weights before "
                        "their world",
                        function, name);
    const ewx_kind given = kind_of(word & ~EWX_HANDLE_GONE);
    return ewx_fail(EW_ERR_ARGUMENT,
                    "%s was given %s%s where it needs a %s\n"
                    "  fix: pass what ew_%s_create returned and is not destroyed",
                    function, given ? "a " : "", given ? names[given] : "something else",
                    name, name);
}
