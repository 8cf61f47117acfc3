"""`anabranch bench`: publish, consume and end-to-end latency, measured against any broker."""
