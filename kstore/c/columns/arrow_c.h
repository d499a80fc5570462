/* The Arrow C data and stream interfaces: the layout by which independent libraries in one process exchange columns.
   Every copy of these structures has this include guard, so that two copies can be included together. */
#ifndef KSTORE_ARROW_C_H
#define KSTORE_ARROW_C_H

#include <stdint.h>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *); /* NULL once released */
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count; /* -1: not counted */
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out); /* 0 or an errno */
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);    /* at the end `out` is released */
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif

#define KS_ARROW_SCHEMA_CAPSULE "arrow_schema"
#define KS_ARROW_ARRAY_CAPSULE "arrow_array"
#define KS_ARROW_STREAM_CAPSULE "arrow_array_stream"

#endif
