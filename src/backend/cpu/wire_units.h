/* Where units lie and who sends them: for wire.c, which moves them, and wire_open.c, which
 * makes room for them. */
#ifndef EWX_CPU_WIRE_UNITS_H
#define EWX_CPU_WIRE_UNITS_H

#include "backend/cpu/engine.h"

static inline size_t ewx_unit_offset(const ewx_cpu_engine *engine, int dst, int64_t unit,
                                     int parity)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int64_t slot = dst * layout->slots_per_part + unit * engine->wire.unit_slots;
    return layout->slice_offset[parity] + (size_t)slot * layout->slot_bytes;
}

/* With two levels a host's ranks take turns in sending its sums. */
static inline bool ewx_unit_is_from(const ewx_cpu_engine *engine, int src, int64_t unit)
{
    const ewx_wire *wire = &engine->wire;
    return engine->levels == 1 ||
           unit % wire->host_ranks[engine->world->hosts[src]] == wire->host_index[src];
}

/* Its place in the channel. */
static inline size_t ewx_unit_place(const ewx_wire *wire, int remote, int64_t unit,
                                    int parity)
{
    return (size_t)((remote * wire->num_units + unit) * 2 + parity);
}

#endif
