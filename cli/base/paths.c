/* Lookup relative to /proc/self/exe. */
#include "base/paths.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
