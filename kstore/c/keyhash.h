/* The hash of the offset map's keys: 96 bits, by a secret of 16 bytes that only this process knows.

   With a secret no keys can be prepared that have the same hash, and each pair of keys has one hash with a chance of
   2^-96. Where the processor has instructions for AES it is AES-XCBC-MAC-96 (RFC 3566), eight keys at once; elsewhere
   SipHash-1-3, of which 96 bits are used. A hash is never stored, so it may differ from machine to machine. Nothing here
   knows Python. */
#ifndef KSTORE_KEYHASH_H
#define KSTORE_KEYHASH_H

#include "siphash.h"

enum { KS_AES_ROUND_KEYS = 11, KS_AES_BLOCK = 16 };

typedef struct {
    uint64_t siphash[2];
    uint8_t rounds[KS_AES_ROUND_KEYS][KS_AES_BLOCK]; /* AES-128 by K1 of the RFC */
    uint8_t whole[KS_AES_BLOCK], padded[KS_AES_BLOCK]; /* K2 and K3: for a last block that is whole, or is not */
    uint8_t by_aes;
} ks_secret;

typedef struct {
    uint64_t hash;
    uint32_t more;
} ks_key;

/* `by_aes` asks for AES, and is 0 for tests of the other hash; whether it is used is in the secret. */
void ks_secret_start(ks_secret *s, const uint8_t bytes[16], int by_aes);

/* The hashes of `n` keys; `sizes` are 0 or more. */
void ks_hash_keys(const ks_secret *s, const uint8_t *const *keys, const int32_t *sizes, int n, ks_key *hashes);

#endif
