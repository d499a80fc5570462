/* Decimal numbers and UTF-8, for the loops that print records. */
#ifndef KSTORE_TEXT_H
#define KSTORE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const char KS_DIGITS[201] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657"
    "585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/* Writes a number in decimal, at most 20 bytes; returns the end of the text. */
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

/* Measures the character at `p`, whose first byte is 0x80 or above: sets `*sound` and returns the character's size. If
   the bytes are malformed, clears `*sound` and returns how many bytes a decoder replaces by one U+FFFD. An encoded
   surrogate is replaced as a whole, three bytes, as in Java (unlike in other decoders). */
static inline size_t ks_utf8_step(const uint8_t *p, size_t n, int *sound) {
    uint8_t a = p[0];
    size_t want = a < 0xc2 ? 1 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf5 ? 4 : 1;
    uint8_t least = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    uint8_t most = a == 0xf4 ? 0x8f : 0xbf;
    *sound = 0;
    if (want == 1 || n < 2 || p[1] < least || p[1] > most) return 1;
    if (want > 2) {
        if (n < 3 || (p[2] & 0xc0) != 0x80) return 2;
        if (want == 4 && (n < 4 || (p[3] & 0xc0) != 0x80)) return 3;
        if (a == 0xed && p[1] > 0x9f) return 3;
    }
    *sound = 1;
    return want;
}

/* Writes bytes as UTF-8, with U+FFFD for malformed ones; returns the end of the text, which has at most 3 * n bytes. */
static inline uint8_t *ks_put_utf8(uint8_t *out, const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    for (;;) {
        while ((size_t)(end - p) >= 16) {
            uint64_t a, b;
            memcpy(&a, p, 8);
            memcpy(&b, p + 8, 8);
            if ((a | b) & 0x8080808080808080u) break;
            memcpy(out, &a, 8);
            memcpy(out + 8, &b, 8);
            out += 16;
            p += 16;
        }
        while (p < end && *p < 0x80) *out++ = *p++;
        if (p == end) return out;
        int sound;
        size_t size = ks_utf8_step(p, (size_t)(end - p), &sound);
        if (sound) {
            for (size_t i = 0; i < size; i++) out[i] = p[i];
            out += size;
        } else {
            memcpy(out, "\xef\xbf\xbd", 3);
            out += 3;
        }
        p += size;
    }
}

/* The number of bytes that ks_put_utf8 writes for these bytes. */
static inline size_t ks_utf8_size(const uint8_t *p, size_t n) {
    size_t size = 0;
    for (const uint8_t *end = p + n; p < end;) {
        size_t step = 1;
        int sound = 1;
        if (*p >= 0x80) step = ks_utf8_step(p, (size_t)(end - p), &sound);
        size += sound ? step : 3;
        p += step;
    }
    return size;
}

#endif
