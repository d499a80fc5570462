# cython: language_level=3
"""What the compiled modules share: field offsets, big-endian loads and stores, varints.

Everything here is inline and `noexcept nogil`. Readers carry the end with the pointer and answer with a status;
the module that called turns a status into an exception that knows the position.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


# Record batch v2 (FORMAT.md 2.1); each offset is derived from the one before.
cdef enum:
    BASE_OFFSET_AT = 0
    BATCH_LENGTH_AT = BASE_OFFSET_AT + 8
    LOG_OVERHEAD = BATCH_LENGTH_AT + 4
    LEADER_EPOCH_AT = LOG_OVERHEAD
    MAGIC_AT = LEADER_EPOCH_AT + 4
    HEADER_UP_TO_MAGIC = MAGIC_AT + 1
    CRC_AT = HEADER_UP_TO_MAGIC
    ATTRIBUTES_AT = CRC_AT + 4
    LAST_OFFSET_DELTA_AT = ATTRIBUTES_AT + 2
    BASE_TIMESTAMP_AT = LAST_OFFSET_DELTA_AT + 4
    MAX_TIMESTAMP_AT = BASE_TIMESTAMP_AT + 8
    PRODUCER_ID_AT = MAX_TIMESTAMP_AT + 8
    PRODUCER_EPOCH_AT = PRODUCER_ID_AT + 8
    BASE_SEQUENCE_AT = PRODUCER_EPOCH_AT + 2
    RECORDS_COUNT_AT = BASE_SEQUENCE_AT + 4
    RECORDS_AT = RECORDS_COUNT_AT + 4          # 61, the size of a batch without records

    MIN_V0_MESSAGE = 14                        # the smallest declared size of any entry (FORMAT.md 2.7)
    MIN_V1_MESSAGE = 22

# Attribute bits (FORMAT.md 2.2).
cdef enum:
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint16_t ks_bswap16(uint16_t x) { return __builtin_bswap16(x); }
    static inline uint32_t ks_bswap32(uint32_t x) { return __builtin_bswap32(x); }
    static inline uint64_t ks_bswap64(uint64_t x) { return __builtin_bswap64(x); }
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define KS_BE16(x) ks_bswap16(x)
    #define KS_BE32(x) ks_bswap32(x)
    #define KS_BE64(x) ks_bswap64(x)
    #else
    #define KS_BE16(x) (x)
    #define KS_BE32(x) (x)
    #define KS_BE64(x) (x)
    #endif
    static inline int16_t ks_load16(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return (int16_t)KS_BE16(x); }
    static inline int32_t ks_load32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return (int32_t)KS_BE32(x); }
    static inline int64_t ks_load64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return (int64_t)KS_BE64(x); }
    static inline void ks_store16(uint8_t *p, int16_t v) { uint16_t x = KS_BE16((uint16_t)v); memcpy(p, &x, 2); }
    static inline void ks_store32(uint8_t *p, int32_t v) { uint32_t x = KS_BE32((uint32_t)v); memcpy(p, &x, 4); }
    static inline void ks_store64(uint8_t *p, int64_t v) { uint64_t x = KS_BE64((uint64_t)v); memcpy(p, &x, 8); }

    static inline int ks_uvarint_size(uint64_t z) {
        return z < 0x80 ? 1 : (70 - __builtin_clzll(z)) / 7;   /* ceil(bits / 7) */
    }
    static inline uint64_t ks_zigzag(int64_t n) { return ((uint64_t)n << 1) ^ (uint64_t)(n >> 63); }
    static inline int64_t ks_unzigzag(uint64_t z) { return (int64_t)(z >> 1) ^ -(int64_t)(z & 1); }
    static inline uint8_t *ks_put_uvarint(uint8_t *p, uint64_t z) {
        while (z >= 0x80) { *p++ = (uint8_t)(z | 0x80); z >>= 7; }
        *p++ = (uint8_t)z;
        return p;
    }
    """
    int16_t load16 "ks_load16"(const uint8_t *p) noexcept nogil
    int32_t load32 "ks_load32"(const uint8_t *p) noexcept nogil
    int64_t load64 "ks_load64"(const uint8_t *p) noexcept nogil
    void store16 "ks_store16"(uint8_t *p, int16_t v) noexcept nogil
    void store32 "ks_store32"(uint8_t *p, int32_t v) noexcept nogil
    void store64 "ks_store64"(uint8_t *p, int64_t v) noexcept nogil
    int uvarint_size "ks_uvarint_size"(uint64_t z) noexcept nogil
    uint64_t zigzag "ks_zigzag"(int64_t n) noexcept nogil
    int64_t unzigzag "ks_unzigzag"(uint64_t z) noexcept nogil
    uint8_t *put_uvarint "ks_put_uvarint"(uint8_t *p, uint64_t z) noexcept nogil
