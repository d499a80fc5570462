/* libFuzzer as a library of Python's: it draws inputs, a function of Python's takes them. Loaded before all else, so that
   the instrumented modules report what they reach to this copy of it. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*take)(const uint8_t *data, size_t size));
void __sanitizer_cov_8bit_counters_init(uint8_t *begin, uint8_t *end);
void __sanitizer_cov_pcs_init(const uintptr_t *begin, const uintptr_t *end);

#define LINES 65536

/* Lines of Python that were reached, counted by whoever traces them; each has a made-up address. */
uint8_t ks_lines[LINES];
static uintptr_t ks_places[2 * LINES];

int ks_fuzz(int argc, char **argv, int (*take)(const uint8_t *data, size_t size)) {
    for (size_t i = 0; i < LINES; i++) ks_places[2 * i] = (uintptr_t)(ks_lines + i);
    __sanitizer_cov_8bit_counters_init(ks_lines, ks_lines + LINES);
    __sanitizer_cov_pcs_init(ks_places, ks_places + 2 * LINES);
    return LLVMFuzzerRunDriver(&argc, &argv, take);
}
