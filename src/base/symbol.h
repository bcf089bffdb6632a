/* Functions of libraries that are loaded at run time. */
#ifndef EWX_BASE_SYMBOL_H
#define EWX_BASE_SYMBOL_H

#include <dlfcn.h>
#include <stdbool.h>

/* *function_out is a pointer to a function.  ISO C has no cast from an object's pointer to
 * one; POSIX promises that the bytes are the same. */
static inline bool ewx_symbol_find(void *library, const char *name, void *function_out)
{
    *(void **)function_out = dlsym(library, name);
    return *(void **)function_out != NULL;
}

#endif
