/* The layouts of a column in memory, for columns that are read and columns that are written. */
#ifndef KSTORE_LAYOUT_H
#define KSTORE_LAYOUT_H

#define KS_SLACK 64 /* so many bytes behind a block, or behind the beginning of a row, a copy in whole words may read */

enum ks_layout {
    KS_ABSENT,    /* out: the column is not wanted; in: every row is null */
    KS_OFFSETS32, /* bytes between one offset and the next */
    KS_OFFSETS64,
    KS_VIEWS,     /* 16 bytes a row: size, then the bytes or where they are */
    /* Only columns that come in: */
    KS_STRIDED,   /* `width` bytes every `stride` bytes */
    KS_PADDED,    /* the same, less the NUL bytes at the end (NumPy's S) */
    KS_POINTERS,  /* ks_bytes */
    KS_DICTIONARY,
    KS_LIST32,    /* names and items between one offset and the next: headers */
    KS_LIST64,
    KS_TIMES      /* numbers of `width` bytes every `stride` bytes */
};

#endif
