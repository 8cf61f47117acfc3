"""Reports of brokers about logs, in the form of Pulsar's JSON."""
