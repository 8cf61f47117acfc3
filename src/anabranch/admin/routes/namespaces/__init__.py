"""Endpoints about tenants and namespaces: rights, policies, quotas and schemas."""
