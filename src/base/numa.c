#include "base/numa.h"

#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/symbol.h"

#ifdef EW_HAVE_HWLOC
#include <hwloc.h>
#endif

static struct {
    pthread_once_t once;
    ewx_domains domains;
} machine = {.once = PTHREAD_ONCE_INIT};

/* ---- hwloc ---- */

#define LIBRARY "libhwloc.so.15" /* the interface of all releases 2.x */
#ifdef EW_TESTING
const char *ewx_hwloc_library = LIBRARY;
#define LIBRARY_NAME ewx_hwloc_library
#else
#define LIBRARY_NAME LIBRARY
#endif

#ifdef EW_HAVE_HWLOC

/* Its functions, each under its own name and with its own type. */
#define FUNCTIONS(X)          \
    X(topology_init)          \
    X(topology_load)          \
    X(topology_destroy)       \
    X(topology_is_thissystem) \
    X(get_type_depth)         \
    X(get_nbobjs_by_depth)    \
    X(get_obj_by_depth)       \
    X(bitmap_to_ith_ulong)

typedef struct hwloc {
#define MEMBER(name) __typeof__(&hwloc_##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} hwloc;

static bool load(void *library, hwloc *to)
{
    bool is_found = true;
#define FIND(name) is_found &= ewx_symbol_find(library, "hwloc_" #name, &to->name);
    FUNCTIONS(FIND)
#undef FIND
    return is_found;
}

static ewx_cpus cpus_of(const hwloc *h, hwloc_const_cpuset_t set)
{
    ewx_cpus cpus = {0};
    _Static_assert(sizeof(unsigned long) == sizeof cpus.words[0], "words of 64 bits");
    for (unsigned word = 0; word < EWX_CPU_WORDS; word++)
        cpus.words[word] = h->bitmap_to_ith_ulong(set, word);
    return cpus;
}

/* Nodes without cores of their own, as memory on a card has them, or next to the cores of
 * another one, as fast memory in a package, are not where a rank could run. */
static bool is_new(const ewx_domains *domains, const ewx_cpus *cpus)
{
    bool is_known = ewx_cpus_count(cpus) == 0;
    for (int at = 0; at < domains->count; at++)
        is_known |= ewx_cpus_meet(&domains->at[at].cpus, cpus);
    return !is_known && domains->count < EWX_MAX_DOMAINS;
}

static void read_topology(const hwloc *h, hwloc_topology_t topology, ewx_domains *domains)
{
    const int depth = h->get_type_depth(topology, HWLOC_OBJ_NUMANODE);
    const unsigned count = h->get_nbobjs_by_depth(topology, depth);
    for (unsigned at = 0; at < count; at++) {
        const struct hwloc_obj *node = h->get_obj_by_depth(topology, depth, at);
        const ewx_cpus cpus = cpus_of(h, node->cpuset);
        if (is_new(domains, &cpus))
            domains->at[domains->count++] = (ewx_domain){cpus, (int)node->os_index};
    }
    domains->can_bind = h->topology_is_thissystem(topology);
}

static const char *ask_hwloc(ewx_domains *domains)
{
    hwloc h;
    hwloc_topology_t topology;
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library || !load(library, &h))
        return LIBRARY " cannot be loaded";
    if (h.topology_init(&topology) != 0)
        return "hwloc has no memory";
    const bool is_loaded = h.topology_load(topology) == 0;
    if (is_loaded)
        read_topology(&h, topology, domains);
    h.topology_destroy(topology);
    return is_loaded ? NULL : "hwloc cannot read the machine's topology";
}

#else

static const char *ask_hwloc(ewx_domains *domains)
{
    (void)domains;
    return "this build is without hwloc";
}

#endif

/* ---- Domains ---- */

/* Reading a topology takes milliseconds, which most machines can be spared. */
static bool has_several_nodes(void)
{
    char line[64] = "";
    FILE *file = ewx_system_open("/sys/devices/system/node/online");
    const bool is_read = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    return is_read && strpbrk(line, ",-");
}

static void find(void)
{
    ewx_domains *domains = &machine.domains;
    /* With which hwloc describes another machine. */
    const bool is_asked = has_several_nodes() || secure_getenv("HWLOC_SYNTHETIC");
    if (is_asked && getauxval(AT_SECURE)) /* hwloc loads what the environment names */
        domains->why = "a program with another user's rights does not load hwloc";
    else if (is_asked)
        domains->why = ask_hwloc(domains);
    if (domains->count < 2)
        domains->count = 0;
}

const ewx_domains *ewx_domains_find(void)
{
    pthread_once(&machine.once, find);
    return &machine.domains;
}

/* ---- Homes ---- */

static int domains_with(const ewx_domains *domains, const ewx_cpus *cpus,
                        const ewx_domain **with)
{
    int count = 0;
    for (int at = 0; at < domains->count; at++)
        if (ewx_cpus_meet(&domains->at[at].cpus, cpus))
            with[count++] = &domains->at[at];
    return count;
}

void ewx_home_choose(const ewx_domains *domains, const ewx_cpus *cpus, int index, int count,
                     ewx_home *home_out)
{
    const ewx_domain *with[EWX_MAX_DOMAINS];
    const int num_domains = domains_with(domains, cpus, with);
    const int first = index * num_domains / count;
    const int end =
        num_domains <= count ? first + 1 : ((index + 1) * num_domains + count - 1) / count;
    const int bits = 8 * sizeof(unsigned long);
    *home_out = (ewx_home){.num_domains = 0};
    if (num_domains == 0)
        home_out->cpus = *cpus;
    for (int at = first; num_domains > 0 && at < end; at++) {
        const ewx_cpus part = ewx_cpus_both(&with[at]->cpus, cpus);
        ewx_cpus_join(&home_out->cpus, &part);
        home_out->num_domains++;
        if (with[at]->node < EWX_MAX_CPUS)
            home_out->nodes[with[at]->node / bits] |= 1UL << (with[at]->node % bits);
    }
}

bool ewx_own_cpus(ewx_cpus *cpus_out)
{
    *cpus_out = (ewx_cpus){0};
    return sched_getaffinity(0, sizeof *cpus_out, (cpu_set_t *)(void *)cpus_out) == 0;
}

static bool set_mask(const ewx_cpus *cpus)
{
    return sched_setaffinity(0, sizeof *cpus, (const cpu_set_t *)(const void *)cpus) == 0;
}

/* Pages in turn from all nodes, unless the program has a policy of its own. */
static bool interleave(const ewx_home *home)
{
    int policy;
    return syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) == 0 &&
           policy == MPOL_DEFAULT &&
           syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, home->nodes,
                   8 * sizeof home->nodes) == 0;
}

ewx_stay ewx_home_enter(const ewx_home *home)
{
    ewx_stay stay = {.is_bound = false};
    if (home->num_domains < 1 || !ewx_domains_find()->can_bind ||
        !ewx_own_cpus(&stay.before))
        return stay;
    stay.is_bound = !ewx_cpus_equal(&stay.before, &home->cpus) && set_mask(&home->cpus);
    stay.interleaves = home->num_domains > 1 && interleave(home);
    return stay;
}

void ewx_confine(pthread_t thread, const ewx_cpus *cpus)
{
    (void)pthread_setaffinity_np(thread, sizeof *cpus,
                                 (const cpu_set_t *)(const void *)cpus);
}

void ewx_home_leave(const ewx_stay *stay)
{
    if (stay->interleaves)
        (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
    if (stay->is_bound)
        (void)set_mask(&stay->before);
}
