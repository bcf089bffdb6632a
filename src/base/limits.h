/* Bounds that several layers share. */
#ifndef EWX_BASE_LIMITS_H
#define EWX_BASE_LIMITS_H

/* Every rank keeps a socket to every other, so this bounds descriptors too. */
#define EWX_MAX_RANKS 256
#define EWX_MAX_WORKERS 1024 /* of a rank */

#endif
