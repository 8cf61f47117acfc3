"""Measured rates, limits of rates, and the clients that count against the quotas of topics and tenants.

Nothing here knows logs or subscriptions.
"""
