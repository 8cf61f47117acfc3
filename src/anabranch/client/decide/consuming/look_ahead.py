"""How many messages a blocking consumer takes from the loop's thread at once. Pure.

Crossing threads costs more than most messages do, so a quick application takes many at once. The messages of
a slow one stay with the loop's thread: another consumer may get them when shares move, and the time for their
processing does not run yet.

Example: 100 messages were handled in 0.01 s. 500 would fit into 0.05 s, but the number at most doubles, so
200 are taken next. If these take a whole second, 10 are taken after them.
"""

from __future__ import annotations

TAKEN_MAX = 4000
"""Most messages that are taken at once, unless the caller asks for more."""

AHEAD_S = 0.05
"""About how long the application should need for the messages that are taken at once."""


def next_look_ahead(asked: int, taken: int, used_s: float) -> int:
    """Return how many messages a consumer asks for now.

    Last time it asked for `asked` and found `taken`, for which the application needed `used_s`.
    """
    fitting = int(taken * AHEAD_S / used_s) if used_s > 0 else TAKEN_MAX
    return max(1, min(fitting, 2 * asked, TAKEN_MAX))
