"""Record batches as bytes: encoding, compression, the old formats, and the checks of a leader and a follower.

`kstore._core` decodes. Invariant: any bytes yield records or a `CorruptRecordError`, and no read passes their end.
"""
