"""The developers' benchmarks: each figure is compared with a peer in the same run (`make bench`)."""
