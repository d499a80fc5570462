/* Strings and numbers as JSON has them. Nothing here knows Python. */
#ifndef KSTORE_JSON_H
#define KSTORE_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text.h"

enum { KS_JSON_GROWTH = 6 }; /* how many bytes one byte may become: \u0001 */

/* Which of eight bytes need a closer look: below 0x20, a quote, a backslash, or from 0x80 up. */
static inline uint64_t ks_json_special(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');
    return (word | (word - ones * 0x20) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash)) & highs;
}

/* Puts bytes as a JSON string with its quotes, as they are where that is allowed; answers where it ends, at most
   6 * n + 2 bytes on, or NULL if the bytes are no UTF-8. */
static uint8_t *ks_put_json_text(uint8_t *out, const uint8_t *p, size_t n) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *end = p + n;
    *out++ = '"';
    for (;;) {
        while (end - p >= 8) {
            uint64_t word;
            memcpy(&word, p, 8);
            if (ks_json_special(word)) break;
            memcpy(out, &word, 8);
            out += 8;
            p += 8;
        }
        if (p == end) break;
        /* One character, or what is left of the eight bytes up to the one that stopped us. */
        uint8_t c = *p;
        if (c >= 0x80) {
            int sound;
            size_t size = ks_utf8_step(p, (size_t)(end - p), &sound);
            if (!sound) return NULL;
            for (size_t i = 0; i < size; i++) *out++ = p[i];
            p += size;
            continue;
        }
        p++;
        if (c >= 0x20 && c != '"' && c != '\\') {
            *out++ = c;
            continue;
        }
        *out++ = '\\';
        switch (c) {
        case '"': case '\\': *out++ = c; break;
        case '\n': *out++ = 'n'; break;
        case '\r': *out++ = 'r'; break;
        case '\t': *out++ = 't'; break;
        case '\b': *out++ = 'b'; break;
        case '\f': *out++ = 'f'; break;
        default:
            memcpy(out, "u00", 3);
            out[3] = (uint8_t)hex[c >> 4];
            out[4] = (uint8_t)hex[c & 15];
            out += 5;
        }
    }
    *out++ = '"';
    return out;
}

/* Puts bytes as a JSON string of base64; answers where it ends, at most 2 * n + 6 bytes on. */
static uint8_t *ks_put_base64(uint8_t *out, const uint8_t *p, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    *out++ = '"';
    for (; n >= 3; n -= 3, p += 3) {
        uint32_t group = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        for (int shift = 18; shift >= 0; shift -= 6) *out++ = (uint8_t)digits[group >> shift & 63];
    }
    if (n > 0) {
        uint32_t group = (uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0);
        *out++ = (uint8_t)digits[group >> 18];
        *out++ = (uint8_t)digits[group >> 12 & 63];
        *out++ = n > 1 ? (uint8_t)digits[group >> 6 & 63] : '=';
        *out++ = '=';
    }
    *out++ = '"';
    return out;
}

static inline size_t ks_digits(const uint8_t *p, size_t n, size_t i) {
    while (i < n && p[i] >= '0' && p[i] <= '9') i++;
    return i;
}

/* Says whether bytes are a JSON number and nothing else. */
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
