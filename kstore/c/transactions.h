/* The transactions that a cleaner encounters in a log (SEMANTICS 7.15, 7.16; Kafka's CleanedTransactionMetadata): which
   batches are aborted data, and which markers have no data left.

   Offsets and producer ids are used as the headers have them; no order is assumed. */
#ifndef KSTORE_TRANSACTIONS_H
#define KSTORE_TRANSACTIONS_H

#include <stddef.h>

#include "wire.h"

/* An entry of a transaction index (FORMAT 9). */
typedef struct {
    int64_t version, producer_id, first, last, last_stable;
} ks_aborted_txn;

typedef struct {
    ks_aborted_txn aborted; /* its active aborted transaction */
    uint8_t used, active, has_data, committed;
} ks_producer_txns;

typedef struct {
    ks_aborted_txn *waiting; /* a heap by first offset: transactions that no batch has reached */
    size_t waiting_count, waiting_capacity;
    ks_producer_txns *producers; /* a hash table by producer id; its capacity is a power of 2 */
    size_t producers_used, producers_capacity;
    ks_aborted_txn *retained; /* transactions whose marker is kept because data was seen */
    size_t retained_count, retained_capacity;
    uint64_t seed;
} ks_transactions;

enum ks_control {
    KS_CONTROL_ABORT = 0,
    KS_CONTROL_COMMIT = 1,
    KS_CONTROL_OTHER = 2,
    KS_CONTROL_EMPTY = 3,       /* the batch has no records */
    KS_CONTROL_COMPRESSED = -1, /* its records must be decompressed first */
    KS_CONTROL_BAD = -2         /* its first record cannot be read, or is not a control record */
};

/* Adds an entry; returns 0, or -1 without memory. */
int ks_transactions_add(ks_transactions *t, const ks_aborted_txn *txn);

/* Visits a data batch of any format; returns 1 if it belongs to an aborted transaction, 0 if not, -1 without memory. */
int ks_transactions_on_data(ks_transactions *t, const uint8_t *p);

/* Visits a control batch whose first record is of this type (one of the first four); returns 1 if the marker is no
   longer needed, 0 if it is needed, -1 without memory. */
int ks_transactions_on_control(ks_transactions *t, const uint8_t *p, int type);

void ks_transactions_free(ks_transactions *t);

/* The type of the control batch of `size` bytes (61 or more) at `p`. */
int ks_control_type(const uint8_t *p, int64_t size);

/* The type of the control batch whose uncompressed first record is in [p, end). */
int ks_control_type_of(const uint8_t *p, const uint8_t *end);

#endif
