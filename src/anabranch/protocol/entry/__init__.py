"""The bytes of an entry: metadata, batches, chunks, compression and encryption."""
