"""Pulsar's REST paths over broker and controller, and a client for them: one module per family of paths."""
