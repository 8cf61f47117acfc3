"""The values and decisions of the domain: hashes, ranges, names, ids, layouts, drains, assignments.

Everything here is pure. This package must not know the wire, the disk, an event loop or a clock.
"""
