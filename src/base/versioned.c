#include "base/versioned.h"

#include <stdbool.h>
#include <string.h>

#include "base/status.h"

/* A struct is never so much larger: beyond, its size was not initialised. */
enum { MOST_GROWTH = 4096 };

static uint32_t size_of(const void *theirs)
{
    uint32_t size;
    memcpy(&size, theirs, sizeof size);
    return size;
}

static void set_size(void *theirs, size_t bytes)
{
    const uint32_t size = (uint32_t)bytes;
    memcpy(theirs, &size, sizeof size);
}

static bool is_initialised(size_t size, size_t first, size_t bytes)
{
    return size >= first && size <= bytes + MOST_GROWTH;
}

ew_status ewx_struct_take(void *mine, size_t bytes, const void *theirs, size_t first,
                          const char *what, const char *init)
{
    const size_t size = theirs ? size_of(theirs) : 0;
    if (!is_initialised(size, first, bytes))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%s: missing or not initialised, with a struct_size of %zu\n"
                        "  fix: initialise it with %s",
                        what, size, init);
    for (size_t at = bytes; at < size; at++)
        if (((const unsigned char *)theirs)[at] != 0)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "%s has a field at byte %zu that Entwine %s does not have\n"
                            "  fix: use the library that the program was compiled for",
                            what, at, ew_version());
    memset(mine, 0, bytes);
    memcpy(mine, theirs, size < bytes ? size : bytes);
    set_size(mine, bytes);
    return EW_OK;
}

void ewx_struct_give(void *theirs, size_t first, const void *mine, size_t bytes)
{
    const size_t size = size_of(theirs);
    const size_t room = is_initialised(size, first, bytes) ? size : first;
    const size_t written = room < bytes ? room : bytes;
    memcpy(theirs, mine, written);
    set_size(theirs, written);
}

ew_status ewx_problem_take(ew_problem *mine, const ew_problem *theirs)
{
    return ewx_struct_take(mine, sizeof *mine, theirs, EWX_FIRST_PROBLEM, "the problem",
                           "EW_PROBLEM(max_m, n, k, dtype)");
}

ew_status ewx_config_take(ew_config *mine, const ew_config *theirs)
{
    const ew_config open = EW_CONFIG_INIT;
    return ewx_struct_take(mine, sizeof *mine, theirs ? theirs : &open, EWX_FIRST_CONFIG,
                           "the config", "EW_CONFIG_INIT");
}

ew_status ewx_world_options_take(ew_world_options *mine, const ew_world_options *theirs)
{
    const ew_world_options open = EW_WORLD_OPTIONS_INIT;
    return ewx_struct_take(mine, sizeof *mine, theirs ? theirs : &open,
                           EWX_FIRST_WORLD_OPTIONS, "the world's options",
                           "EW_WORLD_OPTIONS_INIT");
}

void ewx_config_give(ew_config *theirs, const ew_config *mine)
{
    ewx_struct_give(theirs, EWX_FIRST_CONFIG, mine, sizeof *mine);
}
