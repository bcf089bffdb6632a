/* A folder that stands for / where the library reads /proc and /sys: control groups of
 * every kind, on a machine that has none of them. */
#ifndef TESTS_FAKE_SYSTEM_H
#define TESTS_FAKE_SYSTEM_H

enum { FAKE_PATH_BYTES = 128 };

/* A file and what it holds. */
typedef struct fake_file {
    const char *path; /* from / on; NULL ends a list */
    const char *text;
} fake_file;

typedef struct fake_system {
    char root[FAKE_PATH_BYTES];
} fake_system;

/* A new and empty one; from now on the library reads it, here and in children. */
fake_system fake_system_open(void);
void fake_system_write(const fake_system *fake, const char *path, const char *text);
void fake_system_fill(const fake_system *fake, const fake_file *files);
/* The library reads the system itself again. */
void fake_system_close(const fake_system *fake);

/* What mountinfo and meminfo hold in most cases. */
#define FAKE_V2_MOUNT \
    "35 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
#define FAKE_V1_MOUNTS                                                              \
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"           \
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 master:1 - cgroup cgroup " \
    "rw,cpu,cpuacct\n"                                                              \
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define FAKE_MEMINFO \
    "MemTotal:       67108864 kB\nMemFree:         1000 kB\nMemAvailable:   33554432 kB\n"

#endif
