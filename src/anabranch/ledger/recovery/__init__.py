"""How a store is opened again: journal, ledger files and catalog are compared, mended and replayed."""
