"""The record of the settings that were changed while brokers run, for all brokers and their next starts."""

from __future__ import annotations

from typing import Final

from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import Record

CONFIGURATION: Final = "/configuration"


class ConfigurationRecord(Record, frozen=True, kw_only=True, rename="camel"):
    """The changed settings as texts, by Pulsar's names."""

    values: dict[str, str]


class ConfigurationStore(RecordStore):
    """Reads and changes the one record."""

    async def load(self) -> dict[str, str]:
        record = await self.read(ConfigurationRecord, CONFIGURATION)
        return {} if record is None else record.values

    async def set(self, name: str, value: str | None) -> None:
        """Change one setting; None takes the value of the configuration files again."""

        def change(record: ConfigurationRecord | None) -> ConfigurationRecord:
            kept = {} if record is None else {one: text for one, text in record.values.items() if one != name}
            return ConfigurationRecord(values=kept if value is None else {**kept, name: value})

        await self.update_record(ConfigurationRecord, CONFIGURATION, change)
