"""Names of logs that belong to a segment, a subscription or a sink."""
