"""Clients for bulk readers and writers, such as Spark, and the readers that they hand out."""
