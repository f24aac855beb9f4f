"""A reader of the records learnt of a renamed field by a dashboard that showed nothing for a month. The published one
schema is that of the structs, and every kind of line that is written fits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from harness.records import AddedGates, Fate, GateResult, Line, PairRecord, Status
from harness.schema import as_text, records_schema
from suites.instrument.report_runs import failed_run, sound_run
from suites.instrument.spine import CHECKOUT

COMMITTED = CHECKOUT / "docs" / "records.schema.json"
SCHEMA = records_schema()
PYTHON: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
PAIR = PairRecord(
    cell="a", item="a@1", number=1, again=False, order=["A"], blocks_us=[[1.0]], log_ratio=0.0, started=""
)
GATES = [GateResult(gate="G1", status=Status.PASS, message="")]


def misfits(value: Any, schema: dict[str, Any], at: str = "$") -> Iterator[str]:
    """Where `value` does not fit, by the few words of JSON Schema that this one uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(misfits(value, one, at)) for one in schema["anyOf"]):
            yield f"{at}: fits none"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    kind = schema.get("type")
    if kind == "object":
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is no object"
            return
        yield from (f"{at}.{name}: missing" for name in schema.get("required", []) if name not in value)
        extra = schema.get("additionalProperties", {})
        for name, item in value.items():
            yield from misfits(item, schema.get("properties", {}).get(name, extra), f"{at}.{name}")
    elif kind == "array":
        for number, item in enumerate(value):
            yield from misfits(item, schema["items"], f"{at}[{number}]")
    elif kind is not None and not isinstance(value, PYTHON[kind]):
        yield f"{at}: {value!r} is no {kind}"


def lines() -> list[Line]:
    run, failed = sound_run(), failed_run()
    assert run.verdict is not None
    added = AddedGates(cell="a", lane="serving", gates=GATES, fate=Fate.MEASURED)
    return [run.header, *run.lanes, *failed.lanes, run.verdict, added, PAIR]


def test_the_published_schema_is_the_one_of_the_structs() -> None:
    assert COMMITTED.read_text() == as_text(), "write it anew: python -m harness.schema > docs/records.schema.json"


def test_every_kind_of_line_is_in_it_by_its_tag() -> None:
    names = {one["$ref"].rpartition("/")[2] for one in SCHEMA["anyOf"]}
    assert names == {kind.__name__ for kind in get_args(Line)} == {type(line).__name__ for line in lines()}
    assert SCHEMA["$defs"]["Fate"]["enum"] == sorted(fate.value for fate in Fate)


@pytest.mark.parametrize("number", range(len(lines())))
def test_every_line_that_is_written_fits_it(number: int) -> None:
    assert list(misfits(msgspec.json.decode(msgspec.json.encode(lines()[number])), SCHEMA)) == []


@pytest.mark.parametrize(
    "change", [{"log_ratio": None}, {"type": "pears"}, {"order": [1]}, {"blocks_us": [["fast"]]}, {"cell": 3}]
)
def test_a_line_that_is_not_as_published_does_not_fit(change: dict[str, Any]) -> None:
    sound = msgspec.json.decode(msgspec.json.encode(PAIR))
    assert list(misfits({**sound, **change}, SCHEMA))
    del sound["log_ratio"]
    assert list(misfits(sound, SCHEMA))
