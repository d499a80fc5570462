/* CRC-32C (Castagnoli), the checksum of every record batch, as fast as the machine allows.
 *
 * `ks_crc32c(crc, p, n)` continues a finished checksum `crc` (0 to start) over n bytes. The implementation is chosen
 * once, when the module is loaded; compiler flags stay portable.
 *
 *   table    slicing-by-8, any machine
 *   streams  the CPU's CRC instruction on three interleaved streams (x86-64 with SSE4.2 and PCLMULQDQ; ARMv8)
 *   mixed    AVX2 with VPCLMULQDQ and the CRC instruction in parallel for larger inputs, `streams` for the others
 *   fold     AVX-512 with VPCLMULQDQ for larger inputs, `streams` for the others
 */
#ifndef KSTORE_CRC32C_H
#define KSTORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

enum { KS_CRC_TABLE, KS_CRC_STREAMS, KS_CRC_MIXED, KS_CRC_FOLD, KS_CRC_IMPLEMENTATIONS };

/* The checksum `crc` (0 to start) continued over n bytes. */
uint32_t ks_crc32c(uint32_t crc, const uint8_t *p, size_t n);

/* The checksum of two concatenated pieces of data from their checksums; the second piece has n bytes. */
uint32_t ks_crc32c_joined(uint32_t first, uint32_t second, uint64_t n);

const char *ks_crc32c_name(int implementation);

int ks_crc32c_present(int implementation);

/* Runs the implementation with this number, for tests and benchmarks; the machine must support it. */
uint32_t ks_crc32c_with(int implementation, uint32_t crc, const uint8_t *p, size_t n);

#endif
