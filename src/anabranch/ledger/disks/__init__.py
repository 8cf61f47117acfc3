"""The disk port and its adapters: files, threads, syncs and free space."""
