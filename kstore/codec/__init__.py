"""Record batches as bytes: encoding, compression, the old formats, and the checks of a leader and a follower.

Owns the layout of a batch. Its decoder is `kstore._core`, which lies at the top of the package. It leaves files to
`files` and offsets of a log to `log`. The hardest rule: any bytes give records or a `CorruptRecordError`, and no read
goes past the end of the buffer.
"""
