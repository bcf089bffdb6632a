/* Why a world stopped: who is to blame, who noticed, a code and four numbers.  The world
 * knows the codes of its own collectives and messages; all others belong to the layers
 * above, and only their table (src/api/fault_texts.c) says what those mean. */
#ifndef EWX_WORLD_FAULTS_H
#define EWX_WORLD_FAULTS_H

#include <stdint.h>
#include <stdio.h>

#include "entwine/entwine.h"

/* The first rank to report wins; all ranks then report the same fault. */
typedef struct ewx_fault {
    int32_t status;   /* ew_status */
    int32_t culprit;  /* the rank that is to blame */
    int32_t reporter; /* the rank that noticed */
    int32_t code;     /* ewx_fault_code, or from EWX_FAULT_FIRST_ABOVE on */
    int64_t detail[4];
    uint32_t timeout_ms; /* how long the reporter waited; 0: the world's timeout */
    uint32_t plan;       /* the number of the plan in whose call it waited; 0: in none */
} ewx_fault;

static inline uint32_t ewx_timeout_ms(int64_t timeout_ns)
{
    return (uint32_t)(timeout_ns / 1000000);
}

typedef enum ewx_fault_code {
    EWX_FAULT_NONE,      /* the status says everything; detail unused */
    EWX_FAULT_MEETING,   /* a collective of the world; detail: reporter's and culprit's
                            ewx_meeting_word(), where these differ */
    EWX_FAULT_FABRIC,    /* what carries bytes between hosts has failed */
    EWX_FAULT_MESSAGE,   /* a message from another host is malformed */
    EWX_FAULT_JOINING,   /* ranks meet; detail: a bit for each rank that is missing */
    EWX_FAULT_GAVE_UP,   /* the culprit could not do its part, and says why itself */
    EWX_FAULT_CANCELLED, /* the culprit's program did not want the world any more */
    EWX_FAULT_OPERATION, /* detail: ewx_operation_field, reporter's value, culprit's value,
                            sequence; explained above, like those that follow */
    EWX_FAULT_FIRST_ABOVE = 16
} ewx_fault_code;

/* Adds a rank to those that are missing. */
static inline void ewx_fault_add_rank(ewx_fault *fault, int rank)
{
    fault->detail[rank / 64] |= (int64_t)((uint64_t)1 << rank % 64);
}

typedef struct ewx_fault_text {
    int32_t code;
    /* Sets the error text and returns the fault's status. */
    ew_status (*explain)(const ewx_fault *fault, double timeout_s);
    /* Adds members to the fault's object in a recording; NULL: none. */
    void (*print)(FILE *out, const ewx_fault *fault);
} ewx_fault_text;

/* What the numbers mean that the layers above leave in faults and records. */
typedef struct ewx_terms {
    const ewx_fault_text *faults;
    size_t num_faults;
    const char *shape[3]; /* names of a record's three sizes */
    const char *steps[3]; /* names of ewx_recorder_step's steps; NULL: not a step */
    const char *awaited;  /* what a rank inside a call waits for */
} ewx_terms;

/* Defined above, once and for all, so that a process without a world (`entwine status`) can
 * read recordings too. */
extern const ewx_terms ewx_terms_above;

/* NULL: the code is unknown, or one of the world's own. */
const ewx_fault_text *ewx_fault_text_find(int32_t code);

#endif
