/* The control groups that this process is in, from its own up to the highest that it can
 * see: cgroup v1, v2, both at once, and what is left of them in a container. */
#ifndef EWX_BASE_CGROUP_H
#define EWX_BASE_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ewx_cgroup {
    char folder[PATH_MAX];
    size_t mount_length; /* of the folder's part that is the mount point */
    bool is_v2;
} ewx_cgroup;

/* The process's own group in the hierarchy that has this controller ("memory", "cpu").
 * False: there is none, or it is not mounted where this process can see it. */
bool ewx_cgroup_find(const char *controller, ewx_cgroup *group_out);

/* Goes on to the group's parent; false, and unchanged, at the mount point. */
bool ewx_cgroup_ascend(ewx_cgroup *group);

/* The number that the group's file holds, or the one behind `key` in a file of lines
 * "key number" (NULL: no key).  False for a missing file, "max", -1 and whatever else is
 * not a whole number. */
bool ewx_cgroup_number(const ewx_cgroup *group, const char *file, const char *key,
                       uint64_t *number_out);

/* Two numbers on one line, or "max" and a number, which is false. */
bool ewx_cgroup_numbers(const ewx_cgroup *group, const char *file, uint64_t *first_out,
                        uint64_t *second_out);

/* The same for every process in the group, whatever name it has there; 0: unknown. */
uint64_t ewx_cgroup_id(const ewx_cgroup *group);

/* Opens a file of /proc or /sys for reading.  Tests put a folder of their own in front. */
FILE *ewx_system_open(const char *path);
#ifdef EW_TESTING
extern const char *ewx_system_root; /* "": the system itself */
#endif

#endif
