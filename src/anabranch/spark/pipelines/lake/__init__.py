"""Topics as files of a lake: archive, compact, replay."""
