"""The simulated machine: event loop, processes, network, disks, clocks, and their faults."""
