"""Record batches as bytes: encoding, compression, the old formats, and the checks of a leader and a follower.

`kstore._core` decodes. Invariant: decoding any bytes yields records or a `CorruptRecordError`, and reads only them.
"""
