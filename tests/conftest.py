"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run, however slow the machine is; `--hypothesis-profile default` draws others.
settings.load_profile("ci")
