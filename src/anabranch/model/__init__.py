"""Values and decisions of the domain, pure: hashes, ranges, names, ids, layouts, drains, assignments.

This package must not know the wire, the disk, an event loop or a clock.
"""
