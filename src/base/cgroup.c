#include "base/cgroup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Files of the system ---- */

#ifdef EW_TESTING
const char *ewx_system_root = "";
#define ROOT ewx_system_root
#else
#define ROOT ""
#endif

FILE *ewx_system_open(const char *path)
{
    char place[2 * PATH_MAX];
    const int length = snprintf(place, sizeof place, "%s%s", ROOT, path);
    return length < (int)sizeof place ? fopen(place, "re") : NULL;
}

uint64_t ewx_cgroup_id(const ewx_cgroup *group)
{
    char place[2 * PATH_MAX];
    struct stat info;
    const int length = snprintf(place, sizeof place, "%s%s", ROOT, group->folder);
    if (length >= (int)sizeof place || stat(place, &info) != 0)
        return 0;
    return ((uint64_t)info.st_dev << 40) + (uint64_t)info.st_ino;
}

/* Longer than any line about control groups; of others the rest is passed over. */
#define LINE_BYTES (3 * PATH_MAX)

static bool next_line(FILE *file, char *line)
{
    if (!file || !fgets(line, LINE_BYTES, file))
        return false;
    for (int letter = 0; !strchr(line, '\n') && letter != '\n' && letter != EOF;)
        letter = fgetc(file);
    return true;
}

/* ---- /proc/self/cgroup ---- */

/* Whether a list "cpu,cpuacct" has the name. */
static bool lists(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; *at; at += strspn(at, ",")) {
        const size_t item = strcspn(at, ",");
        if (item == length && memcmp(at, name, length) == 0)
            return true;
        at += item;
    }
    return false;
}

/* Lines are "4:cpu,cpuacct:/path", that of v2 is "0::/path".  True: it is the controller's
 * line, or, for no controller, that of v2. */
static bool read_membership(char *line, const char *controller, const char **path_out)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/')
        return false;
    *controllers++ = '\0';
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    *path_out = path;
    return controller ? lists(controllers, controller)
                      : strcmp(line, "0") == 0 && *controllers == '\0';
}

static bool find_path(const char *controller, char *path, size_t bytes)
{
    FILE *file = ewx_system_open("/proc/self/cgroup");
    char line[LINE_BYTES];
    const char *found = NULL;
    bool is_found = false;
    while (!is_found && next_line(file, line))
        if (read_membership(line, controller, &found))
            is_found = snprintf(path, bytes, "%s", found) < (int)bytes;
    if (file)
        fclose(file);
    return is_found;
}

/* ---- /proc/self/mountinfo ---- */

typedef struct mount {
    char *root, *point, *type, *options;
} mount;

/* Blanks and the like are written as \040. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        unsigned value = 0;
        if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
            for (int digit = 1; digit <= 3; digit++)
                value = value * 8 + (unsigned)(from[digit] - '0');
            *to = (char)value;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* "32 31 0:29 ROOT POINT options [optional...] - TYPE source OPTIONS" */
static bool read_mount(char *line, mount *mount_out)
{
    char *fields[64], *save = NULL;
    int count = 0, dash = 0;
    for (char *at = strtok_r(line, " \n", &save); at && count < 64;
         at = strtok_r(NULL, " \n", &save)) {
        if (!dash && count >= 6 && strcmp(at, "-") == 0)
            dash = count;
        fields[count++] = at;
    }
    if (!dash || dash + 3 >= count || fields[4][0] != '/')
        return false;
    *mount_out = (mount){fields[3], fields[4], fields[dash + 1], fields[dash + 3]};
    unescape(mount_out->root);
    unescape(mount_out->point);
    return true;
}

/* What is left of the group's path below the mount, or NULL if the group does not lie
 * there: then it is outside of what this process sees, as with "/.." in a namespace. */
static const char *path_below(const char *root, const char *path)
{
    const size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, length) != 0 || (path[length] && path[length] != '/') ||
        strstr(path, "/../") || strcmp(path, "/..") == 0)
        return NULL;
    return strcmp(path + length, "/") == 0 ? "" : path + length;
}

/* A mount that shows the group itself is best; else its mount point stands for the lowest
 * group that can be seen. */
static bool take_mount(const mount *m, const char *path, ewx_cgroup *group)
{
    const char *below = path_below(m->root, path);
    const size_t bytes = sizeof group->folder;
    if (!below && group->mount_length > 0)
        return false;
    if (snprintf(group->folder, bytes, "%s%s", m->point, below ? below : "") >= (int)bytes)
        return false;
    group->mount_length = strlen(m->point);
    return below != NULL;
}

static bool find_mount(const char *controller, const char *path, ewx_cgroup *group)
{
    FILE *file = ewx_system_open("/proc/self/mountinfo");
    char line[LINE_BYTES];
    bool is_best = false;
    mount m;
    while (!is_best && next_line(file, line)) {
        if (!read_mount(line, &m))
            continue;
        if (controller ? strcmp(m.type, "cgroup") == 0 && lists(m.options, controller)
                       : strcmp(m.type, "cgroup2") == 0)
            is_best = take_mount(&m, path, group);
    }
    if (file)
        fclose(file);
    return group->mount_length > 0;
}

/* ---- Groups ---- */

bool ewx_cgroup_find(const char *controller, ewx_cgroup *group_out)
{
    char path[PATH_MAX];
    ewx_cgroup group = {.is_v2 = false};
    /* A controller is in v1 or in v2, never in both. */
    if (find_path(controller, path, sizeof path) && find_mount(controller, path, &group)) {
        *group_out = group;
        return true;
    }
    group = (ewx_cgroup){.is_v2 = true};
    if (!find_path(NULL, path, sizeof path) || !find_mount(NULL, path, &group))
        return false;
    *group_out = group;
    return true;
}

bool ewx_cgroup_ascend(ewx_cgroup *group)
{
    const size_t length = strlen(group->folder);
    char *slash = strrchr(group->folder, '/');
    if (length <= group->mount_length || !slash)
        return false;
    group->folder[slash - group->folder > (ptrdiff_t)group->mount_length
                      ? (size_t)(slash - group->folder)
                      : group->mount_length] = '\0';
    return true;
}

/* ---- Values ---- */

static FILE *open_file(const ewx_cgroup *group, const char *file)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", group->folder, file);
    return ewx_system_open(path);
}

/* A whole number at *text, which then points behind it. */
static bool take_number(const char **text, uint64_t *number_out)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    const unsigned long long value = strtoull(*text, &end, 10);
    if (errno || (*end != '\0' && *end != '\n' && *end != ' '))
        return false;
    *number_out = value;
    *text = end;
    return true;
}

static bool read_number(const char *line, const char *key, uint64_t *number_out)
{
    const size_t length = key ? strlen(key) : 0;
    if (key && (strncmp(line, key, length) != 0 || line[length] != ' '))
        return false;
    const char *at = line + length + (key != NULL);
    return take_number(&at, number_out);
}

bool ewx_cgroup_number(const ewx_cgroup *group, const char *file, const char *key,
                       uint64_t *number_out)
{
    FILE *opened = open_file(group, file);
    char line[256];
    bool is_found = false;
    while (opened && !is_found && fgets(line, sizeof line, opened)) {
        is_found = read_number(line, key, number_out);
        if (!key)
            break;
    }
    if (opened)
        fclose(opened);
    return is_found;
}

bool ewx_cgroup_numbers(const ewx_cgroup *group, const char *file, uint64_t *first_out,
                        uint64_t *second_out)
{
    FILE *opened = open_file(group, file);
    char line[256];
    const char *at = line;
    const bool is_read = opened && fgets(line, sizeof line, opened);
    if (opened)
        fclose(opened);
    return is_read && take_number(&at, first_out) && *at++ == ' ' &&
           take_number(&at, second_out);
}
