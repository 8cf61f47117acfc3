"""The inbox of a consumer: entries of its segments in, messages out, and callers that wait for them."""
