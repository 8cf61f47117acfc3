"""The admin API on HTTP: connections, callers, and calls on their way to an endpoint."""
