"""Pure decisions of the Spark source: offsets, what a micro-batch reads, and how partitions are cut."""
