"""Decisions about brokers: which layouts to believe, when to attach again, what to report and when to end."""
