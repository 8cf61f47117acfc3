"""Opens a store again: compares, mends and replays its journal, ledger files and catalog."""
