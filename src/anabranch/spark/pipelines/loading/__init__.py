"""Files and tables loaded into topics."""
