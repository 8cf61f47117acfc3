"""The largest `max_message_bytes` that brokers of this data directory ever had, kept in the metadata store.

Consumers close a connection at a frame that exceeds the size which the broker gives in CONNECTED. Entries
that were stored under a larger setting must still reach them, so a broker never gives a smaller size.
"""

from __future__ import annotations

from typing import Final

from anabranch.errors import VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore

PATH: Final = "/message-bytes-max"


async def largest_message_bytes(store: MetadataStore, configured: int) -> int:
    """Return the largest setting so far, this one included, which is remembered."""
    while True:
        found = await store.get(PATH)
        known = 0 if found is None else int(found.value)
        if configured <= known:
            return known
        try:
            await store.put(PATH, b"%d" % configured, expected=ABSENT if found is None else found.version)
        except VersionConflictError:
            continue
        return configured
