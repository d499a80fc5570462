/* CRC-32 (IEEE, reflected 0xEDB88320) for message formats v0 and v1: a recovery scan runs without the GIL, and cannot
   call Python's zlib. Tables of 4 KiB, four bytes per step. */
#ifndef KSTORE_CRC32_H
#define KSTORE_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* The checksum `crc` (0 to start) continued over n bytes. */
uint32_t ks_crc32(uint32_t crc, const uint8_t *p, size_t n);

#endif
