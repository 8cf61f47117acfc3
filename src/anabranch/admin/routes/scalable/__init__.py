"""Endpoints about scalable topics and their segments."""
