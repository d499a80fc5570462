/* JSON strings and numbers. */
#ifndef KSTORE_JSON_H
#define KSTORE_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text.h"

enum { KS_JSON_GROWTH = 6 }; /* the most bytes that are written for one byte: \u0001 */

/* Sets the high bit of each of the eight bytes that is not ASCII or that JSON escapes. Only the lowest one is exact. */
static inline uint64_t ks_json_special(uint64_t x) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t quote = x ^ (ones * '"'), backslash = x ^ (ones * '\\');
    return (((x - ones * 0x20) & ~x) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | x) & highs;
}

static inline uint8_t *ks_put_json_escape(uint8_t *out, uint8_t c) {
    static const char SHORT[] = "btn\0fr", HEX[] = "0123456789abcdef";
    *out++ = '\\';
    if (c == '"' || c == '\\') {
        *out++ = c;
    } else if (c >= '\b' && c <= '\r' && c != 0x0b) {
        *out++ = (uint8_t)SHORT[c - '\b'];
    } else {
        memcpy(out, "u00", 3);
        out[3] = (uint8_t)HEX[c >> 4];
        out[4] = (uint8_t)HEX[c & 15];
        out += 5;
    }
    return out;
}

/* Writes the bytes from `*from` to `until`, and the rest of a character that crosses `until`, as a part of a JSON
   string: at most KS_JSON_GROWTH bytes for each byte. Advances `*from`. Returns the end of the text, or NULL if the
   bytes are not UTF-8. The input ends at `end`. */
static inline uint8_t *ks_put_json(uint8_t *out, const uint8_t **from, const uint8_t *until, const uint8_t *end) {
    const uint8_t *p = *from;
    while (p < until) {
        if (until - p >= 8) {
            uint64_t x;
            memcpy(&x, p, 8);
            memcpy(out, &x, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
            x = __builtin_bswap64(x);
#endif
            uint64_t special = ks_json_special(x);
            size_t plain = special ? (size_t)__builtin_ctzll(special) / 8 : 8;
            out += plain;
            p += plain;
            if (!special) continue;
        }
        if (*p >= 0x80) {
            int sound;
            size_t size = ks_utf8_step(p, (size_t)(end - p), &sound);
            if (!sound) return NULL;
            for (size_t i = 0; i < size; i++) out[i] = p[i];
            out += size;
            p += size;
        } else if (*p < 0x20 || *p == '"' || *p == '\\') {
            out = ks_put_json_escape(out, *p++);
        } else {
            *out++ = *p++;
        }
    }
    *from = p;
    return out;
}

/* Writes bytes in base64, padded and without quotes; returns the end of the text of 4 * ((n + 2) / 3) bytes. */
static inline uint8_t *ks_put_base64_digits(uint8_t *out, const uint8_t *p, size_t n) {
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; n >= 3; n -= 3, p += 3, out += 4) {
        uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        out[0] = (uint8_t)LETTERS[bits >> 18];
        out[1] = (uint8_t)LETTERS[bits >> 12 & 63];
        out[2] = (uint8_t)LETTERS[bits >> 6 & 63];
        out[3] = (uint8_t)LETTERS[bits & 63];
    }
    if (n) {
        uint32_t bits = (uint32_t)p[0] << 16 | (n == 2 ? (uint32_t)p[1] << 8 : 0);
        out[0] = (uint8_t)LETTERS[bits >> 18];
        out[1] = (uint8_t)LETTERS[bits >> 12 & 63];
        out[2] = n == 2 ? (uint8_t)LETTERS[bits >> 6 & 63] : '=';
        out[3] = '=';
        out += 4;
    }
    return out;
}

/* Writes bytes as a JSON string with quotes, and escapes only if necessary. Returns the end of the text, which has at
   most 6 * n + 2 bytes, or NULL if the bytes are not UTF-8. */
static uint8_t *ks_put_json_text(uint8_t *out, const uint8_t *p, size_t n) {
    *out++ = '"';
    out = ks_put_json(out, &p, p + n, p + n);
    if (out) *out++ = '"';
    return out;
}

/* Writes bytes as a JSON string of base64; returns the end of the text, which has at most 2 * n + 6 bytes. */
static uint8_t *ks_put_base64(uint8_t *out, const uint8_t *p, size_t n) {
    *out++ = '"';
    out = ks_put_base64_digits(out, p, n);
    *out++ = '"';
    return out;
}

static inline size_t ks_digits(const uint8_t *p, size_t n, size_t i) {
    while (i < n && p[i] >= '0' && p[i] <= '9') i++;
    return i;
}

/* Whether the bytes are exactly one JSON number. */
static int ks_is_json_number(const uint8_t *p, size_t n) {
    size_t i = n > 0 && p[0] == '-', next = ks_digits(p, n, i);
    if (next == i || (p[i] == '0' && next > i + 1)) return 0;
    i = next;
    if (i < n && p[i] == '.') {
        next = ks_digits(p, n, i + 1);
        if (next == i + 1) return 0;
        i = next;
    }
    if (i < n && (p[i] == 'e' || p[i] == 'E')) {
        i++;
        if (i < n && (p[i] == '+' || p[i] == '-')) i++;
        next = ks_digits(p, n, i);
        if (next == i) return 0;
        i = next;
    }
    return i == n;
}

#endif
