"""One subscription of a served log: its cursor, its acknowledgements, when it delivers, what it has drained.

How entries are chosen and delivered belongs to `reading`.
"""
