"""The data directory as a whole: lock and format, inspection and repair, backup and restore.

Works on files only, and must not know how a broker serves them.
"""
