/* A key, a value or another run of bytes that lies somewhere. */
#ifndef KSTORE_BYTES_H
#define KSTORE_BYTES_H

#include <stdint.h>

typedef struct {
    const uint8_t *p;
    int64_t n; /* negative: null */
} ks_bytes;

#endif
