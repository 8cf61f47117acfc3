"""The options of source and sink: parsed from text, checked, and turned into values."""
