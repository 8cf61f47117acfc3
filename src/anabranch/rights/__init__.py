"""Rights of roles: which role may do what, as functions on values.

`callers` names the role of a connection or an HTTP request. This package is pure: it knows no socket, no
clock and no file. `anabranch.security` proves roles; broker and admin API enforce rights.
"""
