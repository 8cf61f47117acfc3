"""Rights of roles: which role may do what, as functions on values.

`callers` names the role of a connection or an HTTP request. `table` lists the right that each command and
call needs, `grants` decodes what roles were granted, and `decide` compares the two. This package is pure: it
knows no socket, no clock and no file. `anabranch.security` proves roles; broker and admin API enforce rights.
"""
