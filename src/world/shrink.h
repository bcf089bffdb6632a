/* What a rank whose world was shrunk reports to its launcher, and what thread ranks
 * share. */
#ifndef EWX_WORLD_SHRINK_H
#define EWX_WORLD_SHRINK_H

#include "world/world.h"

#define EWX_SHRUNK_MAGIC 0x6b6e75726873 /* "shrunk" */

/* The members of the new world, in the launcher's numbers: one bit for each. */
typedef struct ewx_shrunk_note {
    uint64_t magic;
    unsigned char members[EWX_MAX_RANKS / 8];
} ewx_shrunk_note;

/* The last of the threads that share the block frees it. */
void ewx_control_release(ewx_control *control, int control_fd, int num_ranks);

#endif
