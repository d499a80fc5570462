/* The hash of the offset map's keys: 96 bits, with a secret of 16 bytes that only this process knows.

   The secret prevents prepared collisions; two given keys have the same hash with probability 2^-96. If the processor
   has AES instructions, the hash is AES-XCBC-MAC-96 (RFC 3566), eight keys in parallel; otherwise it is 96 bits of
   SipHash-1-3. A hash is never stored in a file, so it may differ between machines. */
#ifndef KSTORE_KEYHASH_H
#define KSTORE_KEYHASH_H

#include "siphash.h"

enum { KS_AES_ROUND_KEYS = 11, KS_AES_BLOCK = 16 };

typedef struct {
    uint64_t siphash[2];
    uint8_t rounds[KS_AES_ROUND_KEYS][KS_AES_BLOCK]; /* round keys of AES-128 for the RFC's K1 */
    uint8_t whole[KS_AES_BLOCK], padded[KS_AES_BLOCK]; /* K2 and K3: for a whole or a padded last block */
    uint8_t by_aes;
} ks_secret;

typedef struct {
    uint64_t hash;
    uint32_t more;
} ks_key;

/* `by_aes` requests AES; only tests of SipHash set it to 0. Sets `s->by_aes` if AES is requested and available. */
void ks_secret_start(ks_secret *s, const uint8_t bytes[16], int by_aes);

/* The hashes of `n` keys; `sizes` are 0 or more. */
void ks_hash_keys(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes);

#endif
