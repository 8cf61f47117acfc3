"""Commands about brokers, tenants, namespaces, rights and quotas."""
