/* Whole files, and lookup relative to /proc/self/exe. */
#include "base/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

char *cli_path_read(const char *path, size_t most_bytes, const char **why_out)
{
    size_t bytes = 0;
    char *text = malloc(most_bytes + 1); /* pages that stay untouched cost nothing */
    *why_out = text ? ewx_file_read(path, text, most_bytes, &bytes) : "no memory for it";
    if (!*why_out && memchr(text, '\0', bytes))
        *why_out = "it holds a zero byte";
    if (*why_out) {
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    char *fitting = realloc(text, bytes + 1);
    return fitting ? fitting : text;
}

static bool executable_folder(char *folder, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
    if (length <= 0)
        return false;
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

bool cli_path_find(const char *beside, const char *from_bin, const char *name, char *path,
                   size_t bytes)
{
    char folder[PATH_MAX];
    const char *places[] = {beside, from_bin};
    if (!executable_folder(folder, sizeof folder))
        return false;
    for (size_t place = 0; place < sizeof places / sizeof places[0]; place++) {
        int length = snprintf(path, bytes, "%s/%s%s%s", folder, places[place],
                              *places[place] ? "/" : "", name);
        if (length > 0 && (size_t)length < bytes && access(path, R_OK) == 0)
            return true;
    }
    return false;
}
