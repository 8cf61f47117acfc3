"""What brokers report about logs, in the form of Pulsar's JSON."""
