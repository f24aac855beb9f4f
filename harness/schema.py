"""The JSON Schema of the records, from the structs themselves: `python -m harness.schema > docs/records.schema.json`.

Somebody's dashboard read the field that had been renamed, showed zero failures for a month, and nobody was wrong: there
was nothing to hold it against.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from harness.records import PROTOCOL_VERSION, SCHEMA_VERSION, Line

TITLE = "One line of a run's records.jsonl"


def records_schema() -> dict[str, Any]:
    """Schema (draft 2020-12) of one line. Readers ignore fields that they do not know: new ones come with defaults."""
    (schema,), components = msgspec.json.schema_components([Line], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "description": f"Schema {SCHEMA_VERSION}, protocol {PROTOCOL_VERSION}. The field `type` says which line it is.",
        **schema,
        "$defs": components,
    }


def as_text() -> str:
    return msgspec.json.format(msgspec.json.encode(records_schema(), order="sorted"), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_text())
