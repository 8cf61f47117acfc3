"""Acknowledgement policies: how the broker learns which messages the application has finished."""
