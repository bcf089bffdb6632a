/* What an emulated link carries besides the bytes of a transfer.  A header precedes each
 * line of data, and a reader sends a request for each line, as long as a header, the other
 * way.  Read by the CPU engine, the CUDA engine and the simulator. */
#ifndef EWX_PLAN_LINK_H
#define EWX_PLAN_LINK_H

#define EWX_LINE_BYTES 128 /* what a GPU reads at a time */
#define EWX_MAX_HEADER_BYTES 1024.0

/* Bytes in the direction of the data, per byte of them. */
static inline double ewx_link_sent_per_byte(double header_bytes)
{
    return 1.0 + header_bytes / EWX_LINE_BYTES;
}

/* Bytes of requests in the other direction, per byte that is read. */
static inline double ewx_link_asked_per_byte(double header_bytes)
{
    return header_bytes / EWX_LINE_BYTES;
}

#endif
