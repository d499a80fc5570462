#include "crc32.h"

/* Written once, when the module is loaded. */
static uint32_t ks_crc32_table[4][256];

__attribute__((constructor)) static void ks_crc32_setup(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (0xEDB88320u & -(c & 1));
        ks_crc32_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 4; k++)
            ks_crc32_table[k][i] = ks_crc32_table[k - 1][i] >> 8 ^ ks_crc32_table[0][ks_crc32_table[k - 1][i] & 0xff];
}

uint32_t ks_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t c = ~crc;
    for (; n >= 4; n -= 4, p += 4) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = ks_crc32_table[3][c & 0xff] ^ ks_crc32_table[2][c >> 8 & 0xff] ^ ks_crc32_table[1][c >> 16 & 0xff] ^
            ks_crc32_table[0][c >> 24];
    }
    for (; n; n--) c = c >> 8 ^ ks_crc32_table[0][(c ^ *p++) & 0xff];
    return ~c;
}
