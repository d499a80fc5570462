/* A long range of a file, or of memory, read by several threads into one set of columns, in order.

   The range is divided into cells of equal size. A thread takes a cell and
   1. reads its bytes;
   2. waits for its turn, and follows the chain of batches from the end of the previous cell to the end of this one;
   3. decodes the batches that start in the cell into its own rows, which fit a cache;
   4. waits for its turn again, reserves space in the columns, and copies its rows while the next cell does the same.
   A batch that is not sound, of which only a part is wanted, or that is too large for the columns ends the work:
   `ks_read` continues at this batch and returns the reason. */
#ifndef KSTORE_CELLS_H
#define KSTORE_CELLS_H

#include "columns/reader.h"

/* As `ks_read`, with `threads` threads if there is enough to read. */
enum ks_stop ks_read_threaded(ks_reader *r, int threads);

#endif
