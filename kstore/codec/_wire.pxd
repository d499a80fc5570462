# cython: language_level=3
"""`c/wire.h` for Cython: field offsets, attribute bits, big-endian loads and stores, varints."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t


cdef extern from "wire.h" nogil:
    enum:
        BASE_OFFSET_AT "KS_BASE_OFFSET_AT"
        BATCH_LENGTH_AT "KS_BATCH_LENGTH_AT"
        LOG_OVERHEAD "KS_LOG_OVERHEAD"
        LEADER_EPOCH_AT "KS_LEADER_EPOCH_AT"
        MAGIC_AT "KS_MAGIC_AT"
        HEADER_UP_TO_MAGIC "KS_HEADER_UP_TO_MAGIC"
        CRC_AT "KS_CRC_AT"
        ATTRIBUTES_AT "KS_ATTRIBUTES_AT"
        LAST_OFFSET_DELTA_AT "KS_LAST_OFFSET_DELTA_AT"
        BASE_TIMESTAMP_AT "KS_BASE_TIMESTAMP_AT"
        MAX_TIMESTAMP_AT "KS_MAX_TIMESTAMP_AT"
        PRODUCER_ID_AT "KS_PRODUCER_ID_AT"
        PRODUCER_EPOCH_AT "KS_PRODUCER_EPOCH_AT"
        BASE_SEQUENCE_AT "KS_BASE_SEQUENCE_AT"
        RECORDS_COUNT_AT "KS_RECORDS_COUNT_AT"
        RECORDS_AT "KS_RECORDS_AT"

        LEGACY_CRC_AT "KS_LEGACY_CRC_AT"
        LEGACY_MAGIC_AT "KS_LEGACY_MAGIC_AT"
        LEGACY_ATTRIBUTES_AT "KS_LEGACY_ATTRIBUTES_AT"
        LEGACY_TIMESTAMP_AT "KS_LEGACY_TIMESTAMP_AT"
        V0_KEY_AT "KS_V0_KEY_AT"
        V1_KEY_AT "KS_V1_KEY_AT"
        MIN_V0_MESSAGE "KS_MIN_V0_MESSAGE"
        MIN_V1_MESSAGE "KS_MIN_V1_MESSAGE"

        CODEC_MASK "KS_CODEC_MASK"
        TIMESTAMP_TYPE_BIT "KS_TIMESTAMP_TYPE_BIT"
        TRANSACTIONAL_BIT "KS_TRANSACTIONAL_BIT"
        CONTROL_BIT "KS_CONTROL_BIT"
        DELETE_HORIZON_BIT "KS_DELETE_HORIZON_BIT"

    int16_t load16 "ks_load16"(const uint8_t *p) noexcept
    int32_t load32 "ks_load32"(const uint8_t *p) noexcept
    int64_t load64 "ks_load64"(const uint8_t *p) noexcept
    void store16 "ks_store16"(uint8_t *p, int16_t v) noexcept
    void store32 "ks_store32"(uint8_t *p, int32_t v) noexcept
    void store64 "ks_store64"(uint8_t *p, int64_t v) noexcept

    int64_t wrapping_add "ks_wrapping_add"(int64_t a, int64_t b) noexcept
    int64_t batch_size "ks_batch_size"(const uint8_t *p) noexcept
    int64_t batch_last_offset "ks_last_offset"(const uint8_t *p) noexcept
    int64_t batch_max_timestamp "ks_max_timestamp"(const uint8_t *p) noexcept

    ctypedef struct BatchHead "ks_batch_head":
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t producer_id
        int32_t count
        int32_t base_sequence
        int16_t attributes
        int16_t producer_epoch
    void put_header "ks_put_header"(uint8_t *p, int64_t size, const BatchHead *h) noexcept

    uint64_t zigzag "ks_zigzag"(int64_t n) noexcept
    int uvarint_size "ks_uvarint_size"(uint64_t z) noexcept
    uint8_t *put_uvarint "ks_put_uvarint"(uint8_t *p, uint64_t z) noexcept
