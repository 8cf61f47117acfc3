"""Clients of the admin API; the broker's own modules must not be imported here."""

from anabranch.admin.client.blocking.client import AdminClient

__all__ = ["AdminClient"]
