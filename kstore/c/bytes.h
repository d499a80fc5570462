/* A pointer to a key, a value or other bytes. */
#ifndef KSTORE_BYTES_H
#define KSTORE_BYTES_H

#include <stdint.h>

typedef struct {
    const uint8_t *p;
    int64_t n; /* negative: null */
} ks_bytes;

#endif
