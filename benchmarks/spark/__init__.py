"""Spark jobs on real topics, beside those of the Kafka connector."""
