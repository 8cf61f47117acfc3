"""The data source that Spark calls: it plans batches and micro-batches and reads them in tasks."""
