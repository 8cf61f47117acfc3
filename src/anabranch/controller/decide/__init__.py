"""Pure decisions of a leader; this package must not wait, store, log or read a clock."""
