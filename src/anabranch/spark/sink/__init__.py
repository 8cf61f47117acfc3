"""The sink that Spark calls: Arrow batches become messages, written at least once or exactly once."""
