"""Proves roles and protects connections: TLS, authentication, the audit log.

Knows files, keys and time, and nothing of topics. `anabranch.rights` says what a proven role may do.
"""
