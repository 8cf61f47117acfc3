"""The disk as a port, and its adapters: files, threads, syncs and free space."""
