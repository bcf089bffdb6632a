#include "fake_system.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cgroup.h"
#include "harness.h"

fake_system fake_system_open(void)
{
    static char root[FAKE_PATH_BYTES];
    fake_system fake = {"/tmp/entwine-fake-XXXXXX"};
    if (!mkdtemp(fake.root))
        harness_fail("no folder for a fake system");
    snprintf(root, sizeof root, "%s", fake.root);
    ewx_system_root = root;
    return fake;
}

void fake_system_write(const fake_system *fake, const char *path, const char *text)
{
    char place[512];
    snprintf(place, sizeof place, "%s%s", fake->root, path);
    for (char *at = place + strlen(fake->root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(place, 0700);
        *at = '/';
    }
    FILE *file = fopen(place, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        harness_fail("%s cannot be written", place);
}

void fake_system_fill(const fake_system *fake, const fake_file *files)
{
    for (; files->path; files++)
        fake_system_write(fake, files->path, files->text);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

void fake_system_close(const fake_system *fake)
{
    ewx_system_root = "";
    nftw(fake->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
