"""Record batches as bytes: encoding, compression, the old formats, and the checks of a leader and a follower.

The decoder is `kstore._core`. Invariant: any bytes yield records or a `CorruptRecordError`, and nothing is read past
the end of the buffer.
"""
