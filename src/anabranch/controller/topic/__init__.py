"""The parts of one topic while this broker leads it; this package must not know other topics."""
