"""Commands that run jobs of Spark over topics."""
