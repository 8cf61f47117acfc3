"""Endpoints about classic and live topics, their messages and their subscriptions."""
