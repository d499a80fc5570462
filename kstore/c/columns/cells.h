/* A long stretch of a file, or of memory, read by several threads into one set of columns, in order.

   The stretch is divided into cells of equal size. A thread takes a cell and
   1. reads its bytes;
   2. waits for its turn, and follows the chain of batches from where the cell before left it to the end of this one;
   3. decodes the batches that begin in the cell into rows of its own, which a cache holds;
   4. waits for its turn again, reserves room in the columns, and copies its rows there while the next cell does the same.
   A batch that is not sound, not to be read as a whole, or too large for the columns ends the work: `ks_read` goes on
   from there and says why. */
#ifndef KSTORE_CELLS_H
#define KSTORE_CELLS_H

#include "columns/reader.h"

/* As `ks_read`, with so many threads if there is enough to read. */
enum ks_stop ks_read_threaded(ks_reader *r, int threads);

#endif
