#include "columns/arrow.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t blocks_n;
    ks_block **blocks;
} ks_held;

static void ks_release_array(struct ArrowArray *array) {
    for (int64_t i = 0; i < array->n_children; i++) {
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
        free(array->children[i]);
    }
    ks_held *held = (ks_held *)array->private_data;
    for (int64_t i = 0; i < held->blocks_n; i++) ks_block_drop(held->blocks[i]);
    free(held); /* this also frees the array's lists of buffers, blocks and children */
    array->release = NULL;
}

int ks_make_array(struct ArrowArray *out, int64_t length, int64_t nulls, int64_t buffers, int64_t children) {
    memset(out, 0, sizeof *out);
    size_t pointers = (size_t)(2 * buffers + children) * sizeof(void *);
    ks_held *held = (ks_held *)calloc(1, sizeof *held + pointers);
    if (!held) return -1;
    out->length = length;
    out->null_count = nulls;
    out->n_buffers = buffers;
    out->buffers = (const void **)(held + 1);
    held->blocks = (ks_block **)(out->buffers + buffers);
    out->children = children ? (struct ArrowArray **)(held->blocks + buffers) : NULL;
    out->private_data = held;
    out->release = ks_release_array;
    for (; out->n_children < children; out->n_children++) {
        struct ArrowArray *child = (struct ArrowArray *)calloc(1, sizeof *child);
        if (!child) {
            ks_release_array(out);
            return -1;
        }
        out->children[out->n_children] = child;
    }
    return 0;
}

void ks_set_buffer(struct ArrowArray *array, int64_t i, const void *p, ks_block *block) {
    ks_held *held = (ks_held *)array->private_data;
    array->buffers[i] = p;
    if (block) held->blocks[held->blocks_n++] = ks_block_hold(block);
}

static void ks_release_schema(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (schema->children[i]->release) schema->children[i]->release(schema->children[i]);
        free(schema->children[i]);
    }
    free(schema->private_data);
    schema->release = NULL;
}

int ks_make_schema(struct ArrowSchema *out, const char *format, const char *name, int64_t flags,
                   int64_t children) {
    memset(out, 0, sizeof *out);
    size_t format_size = strlen(format) + 1, name_size = strlen(name) + 1;
    size_t pointers = (size_t)children * sizeof(void *);
    char *memory = (char *)calloc(1, pointers + format_size + name_size);
    if (!memory) return -1;
    out->children = children ? (struct ArrowSchema **)memory : NULL;
    out->format = (const char *)memcpy(memory + pointers, format, format_size);
    out->name = (const char *)memcpy(memory + pointers + format_size, name, name_size);
    out->flags = flags;
    out->private_data = memory;
    out->release = ks_release_schema;
    for (; out->n_children < children; out->n_children++) {
        struct ArrowSchema *child = (struct ArrowSchema *)calloc(1, sizeof *child);
        if (!child) {
            ks_release_schema(out);
            return -1;
        }
        out->children[out->n_children] = child;
    }
    return 0;
}
