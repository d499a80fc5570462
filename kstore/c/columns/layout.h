/* The layouts of a column in memory, for reading and writing columns. */
#ifndef KSTORE_LAYOUT_H
#define KSTORE_LAYOUT_H

#define KS_SLACK 64 /* bytes after a block, or from the start of a row on, that a copy in whole words may access */

enum ks_layout {
    KS_ABSENT,    /* out: the column is not wanted; in: every row is null */
    KS_OFFSETS32, /* each row is the bytes between two offsets */
    KS_OFFSETS64,
    KS_VIEWS,     /* 16 bytes per row: the size, then the bytes or their place */
    /* Only for incoming columns: */
    KS_STRIDED,   /* `width` bytes every `stride` bytes */
    KS_PADDED,    /* the same, without the NUL bytes at the end (NumPy's S) */
    KS_POINTERS,  /* ks_bytes */
    KS_DICTIONARY,
    KS_LIST32,    /* headers: each row is the names and items between two offsets */
    KS_LIST64,
    KS_TIMES      /* numbers of `width` bytes every `stride` bytes */
};

#endif
