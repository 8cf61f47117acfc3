"""Commands for operators on a terminal."""
