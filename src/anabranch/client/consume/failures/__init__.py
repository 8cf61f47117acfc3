"""Failure policies: redelivery, retries, dead letters and parking of messages that were not handled."""
