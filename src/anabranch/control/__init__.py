"""The control plane over Apache Pulsar: segments are `persistent://` topics of a cluster, leaders are here.

A control process is a broker without logs of its own. Its segments port calls the cluster's admin API, its
metadata store is the cluster's ZooKeeper, and messages travel between clients and Pulsar's brokers.
"""
