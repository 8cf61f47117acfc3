"""The metadata of several machines, in ZooKeeper."""
