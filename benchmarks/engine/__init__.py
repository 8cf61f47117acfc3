"""The control plane over a Pulsar cluster."""
