/* Numbers and checks for printing: what the dump's hot loop needs of text. */
#ifndef KSTORE_TEXT_H
#define KSTORE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const char KS_DIGITS[201] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657"
    "585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/* Prints a number in decimal and answers where the text ends; at most 20 bytes. */
static inline uint8_t *ks_put_int(uint8_t *out, int64_t value) {
    uint8_t digits[20];
    uint8_t *p = digits + sizeof digits;
    uint64_t n = (uint64_t)value;
    if (value < 0) {
        *out++ = '-';
        n = 0 - n;
    }
    while (n >= 100) {
        uint64_t rest = n / 100;
        p -= 2;
        memcpy(p, KS_DIGITS + 2 * (n - 100 * rest), 2);
        n = rest;
    }
    if (n >= 10) {
        p -= 2;
        memcpy(p, KS_DIGITS + 2 * n, 2);
    } else {
        *--p = (uint8_t)('0' + n);
    }
    size_t size = (size_t)(digits + sizeof digits - p);
    memcpy(out, p, size);
    return out + size;
}

/* One sequence of two to four bytes that UTF-8 allows (no overlong form, no surrogate, nothing above U+10FFFF). */
static inline size_t ks_utf8_sequence(const uint8_t *p, size_t n) {
    uint8_t a = p[0];
    if (n < 2 || (p[1] & 0xc0) != 0x80) return 0;
    if (a >= 0xc2 && a <= 0xdf) return 2;
    if (n < 3 || (p[2] & 0xc0) != 0x80) return 0;
    if ((a & 0xf0) == 0xe0) {
        if ((a == 0xe0 && p[1] < 0xa0) || (a == 0xed && p[1] > 0x9f)) return 0;
        return 3;
    }
    if (n < 4 || (p[3] & 0xc0) != 0x80) return 0;
    if (a < 0xf0 || a > 0xf4 || (a == 0xf0 && p[1] < 0x90) || (a == 0xf4 && p[1] > 0x8f)) return 0;
    return 4;
}

static inline int ks_is_utf8(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    for (;;) {
        while ((size_t)(end - p) >= 16) {
            uint64_t a, b;
            memcpy(&a, p, 8);
            memcpy(&b, p + 8, 8);
            if ((a | b) & 0x8080808080808080u) break;
            p += 16;
        }
        while (p < end && *p < 0x80) p++;
        if (p == end) return 1;
        size_t size = ks_utf8_sequence(p, (size_t)(end - p));
        if (size == 0) return 0;
        p += size;
    }
}

#endif
