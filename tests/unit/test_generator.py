"""The generator of the wire module: what it writes for each form of schema, what it refuses, and that the module is up to date."""

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from oracles import definitions, schema_dir, shared_schema

from tools import generate_wire
from tools.generate_wire import DEFAULTS, INLINE, MERGED, OVERRIDES, UNTAGGED, SchemaError, collect, main, render

Load = Callable[[dict[str, Any]], ModuleType]


def refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


TEXT = {"type": "string"}
CAT = record(["type", "lives"], type={"const": "cat", "type": "string"}, lives={"type": "integer"})
DOG = record(["type"], type={"const": "dog", "type": "string"}, goodBoy={"type": "boolean"})


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports the module written for some definitions."""

    def load_module(defs: dict[str, Any]) -> ModuleType:
        path = tmp_path / "generated.py"
        path.write_text(render(collect({"$defs": defs})), "utf-8")
        spec = importlib.util.spec_from_file_location("generated", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "generated", module)  # msgspec looks annotations up there
        spec.loader.exec_module(module)
        return module

    return load_module


def read(kind: Any, text: str) -> Any:
    return msgspec.json.decode(text, type=kind)


def test_optional_is_unset_and_null_is_refused(load: Load) -> None:
    module = load({"Pet": record(["petName"], petName=TEXT, ageInYears={"type": "integer"}, note={})})
    assert msgspec.json.encode(module.Pet(pet_name="Tom")) == b'{"petName":"Tom"}'
    assert read(module.Pet, '{"petName":"Tom","note":null}').note is None
    with pytest.raises(msgspec.ValidationError, match="ageInYears"):
        read(module.Pet, '{"petName":"Tom","ageInYears":null}')


def test_constants_are_tags_or_defaults(load: Load) -> None:
    module = load(
        {
            "Cat": CAT,
            "Dog": DOG,
            "Pet": {"anyOf": [refer("Cat"), refer("Dog")]},
            "Call": record(["jsonrpc"], jsonrpc={"const": "2.0", "type": "string"}),
        }
    )
    assert read(module.Pet, '{"goodBoy":true,"type":"dog"}') == module.Dog(good_boy=True)
    assert msgspec.json.encode(module.Cat(lives=9)) == b'{"type":"cat","lives":9}'
    assert msgspec.json.encode(module.Call()) == b'{"jsonrpc":"2.0"}'


def test_enums_limits_and_unions_of_scalars(load: Load) -> None:
    module = load(
        {
            "Mood": {"type": "string", "enum": ["calm", "wild"]},
            "Id": {"type": ["string", "integer"]},
            "Pet": record(
                ["mood", "id"],
                mood=refer("Mood"),
                id=refer("Id"),
                weight={"type": "number", "minimum": 0},
                toys={"type": "array", "items": TEXT, "maxItems": 1},
            ),
        }
    )
    pet = read(module.Pet, '{"mood":"wild","id":7,"weight":1.0,"toys":["ball"]}')
    assert (pet.mood, pet.id, type(pet.weight), pet.toys) == ("wild", 7, float, ["ball"])
    assert type(read(module.Pet, '{"mood":"wild","id":"7","weight":1}').weight) is int
    for bad in (
        '{"mood":"sad","id":1}',
        '{"mood":"calm","id":1.5}',
        '{"mood":"calm","id":1,"weight":-1}',
        '{"mood":"calm","id":1,"toys":["a","b"]}',
    ):
        with pytest.raises(msgspec.ValidationError):
            read(module.Pet, bad)


def test_open_objects_stay_maps(load: Load) -> None:
    module = load(
        {
            "Pet": record(["home"], home={"type": "object", "properties": {"city": TEXT}, "additionalProperties": {}}),
            "Scores": {"type": "object", "additionalProperties": {"type": "integer"}},
        }
    )
    assert read(module.Pet, '{"home":{"city":"Bern","zip":3000}}').home == {"city": "Bern", "zip": 3000}
    with pytest.raises(msgspec.ValidationError):
        read(module.Scores, '{"a":"b"}')


def test_names_lose_prefix_and_mark(load: Load) -> None:
    module = load({"Pet": record([], **{"_meta": {"type": "object"}, "org.example/petName": TEXT, "$class": TEXT})})
    pet = module.Pet(meta={}, pet_name="Tom", class_="cat")
    assert json.loads(msgspec.json.encode(pet)) == {"_meta": {}, "org.example/petName": "Tom", "$class": "cat"}


def test_tables_go_before_rules(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OVERRIDES, "Pet.food", generate_wire.Override("Raw", "test"))
    monkeypatch.setitem(OVERRIDES, "->Cat", generate_wire.Override("Raw", "test"))
    monkeypatch.setitem(MERGED, "Any2", (("Kennel", "Cage"), "test"))
    monkeypatch.setitem(INLINE, "Pet.owner", "Owner")
    monkeypatch.setitem(DEFAULTS, "Pet.legs", generate_wire.Override("4", "test"))
    cage = {"anyOf": [refer("Kennel"), refer("Cage")]}
    module = load(
        {
            "Cat": CAT,
            "Kennel": record(["size", "roof"], size=TEXT, roof=TEXT),
            "Cage": record(["size", "bars"], size=TEXT, bars={"type": "integer"}),
            "Any2": cage,
            "Pet": record(
                ["food", "kin", "legs"],
                food={"type": "integer"},
                kin=refer("Cat"),
                home=cage,
                owner=record(["name"], name=TEXT),
                legs={"type": "integer"},
            ),
        }
    )
    pet = read(module.Pet, '{"food":[1, 2],"kin":{},"home":{"size":"s","bars":3},"owner":{"name":"Ann"}}')
    assert (bytes(pet.food), bytes(pet.kin), pet.home, pet.owner, pet.legs) == (
        b"[1, 2]",
        b"{}",
        module.Any2(size="s", bars=3),
        module.Owner(name="Ann"),
        4,
    )


@pytest.mark.parametrize(
    ("defs", "complaint"),
    [
        ({"A": record([], x=TEXT), "B": record([], y=TEXT), "U": {"anyOf": [refer("A"), refer("B")]}}, "U: no tag tells A, B apart. Add it to OVERRIDES, MERGED or UNTAGGED."),
        ({"Cat": CAT, "Tom": CAT, "U": {"anyOf": [refer("Cat"), refer("Tom")]}}, "U: no tag tells Cat, Tom apart"),
        ({"A": record([], x=record([], y=TEXT))}, "A.x: an object written in place. Give it a name in INLINE."),
        ({"A": record([], x={"type": "string", "pattern": "a+"})}, "A.x: keyword pattern is unknown."),
        ({"A": record([], x={"type": "date"})}, "A.x: type 'date' is unknown."),
        ({"A": record([], fooBar=TEXT, foo_bar=TEXT)}, "A.foo_bar: attribute foo_bar already stands for fooBar."),
    ],
    ids=["untagged", "one tag twice", "inline", "keyword", "type", "names"],
)  # fmt: skip
def test_what_no_rule_covers_is_refused(defs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SchemaError) as caught:
        collect({"$defs": defs})
    assert str(caught.value).startswith(complaint)


def test_two_shapes_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INLINE, "A.x", "X")
    monkeypatch.setitem(INLINE, "A.y", "X")
    with pytest.raises(SchemaError, match=r"A\.y: differs from A\.x, but both are called X"):
        collect({"$defs": {"A": record([], x=record([], one=TEXT), y=record([], two=TEXT))}})


def test_the_command_writes_checks_and_shows_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, target = tmp_path / "schema.json", tmp_path / "wire.py"
    schema.write_text(json.dumps({"$defs": {"Cat": CAT}}))
    arguments = [str(schema), "--target", str(target)]
    assert main([*arguments, "--check"]) == 1
    assert not target.exists()
    assert (main(arguments), main([*arguments, "--check"]), main(arguments)) == (0, 0, 0)
    target.write_text(target.read_text().replace("lives: int", "lives: str"))
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    shown = capsys.readouterr().out
    assert "-    lives: str\n+    lives: int\n" in shown
    assert shown.endswith("wire.py differs from the schema: +1 -1 lines. Run tools/generate_wire.py without --check.\n")


def test_the_command_says_what_it_does_not_understand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, target = tmp_path / "schema.json", tmp_path / "wire.py"
    schema.write_text(json.dumps({"$defs": {"A": record([], x={"type": "date"})}}))
    assert main([str(schema), "--target", str(target)]) == 2
    assert capsys.readouterr().err == "schema.json: A.x: type 'date' is unknown. Teach annotate_type().\n"
    assert not target.exists()


@shared_schema
def test_the_module_is_up_to_date() -> None:
    assert main([f"{schema_dir()}/mcp-2026-07-28.schema.json", "--check"]) == 0


@shared_schema
def test_the_order_of_definitions_does_not_matter() -> None:
    shuffled = list(definitions().items())
    random.Random(2).shuffle(shuffled)
    assert render(collect({"$defs": dict(shuffled)})) == generate_wire.TARGET.read_text("utf-8")


@shared_schema
def test_every_row_of_the_tables_is_needed() -> None:
    """A row for what the schema no longer has would hide that the schema changed."""
    text = json.dumps(definitions())
    for key in [*OVERRIDES, *DEFAULTS]:
        *name, last = key.removeprefix("->").removeprefix("*.").split(".")
        assert f'"{last}": ' in text, key
        assert not name or name[0] in definitions(), key
    assert UNTAGGED | set(MERGED) <= set(definitions())
    assert set(INLINE) == {path for path, name in INLINE.items() if name in collect({"$defs": definitions()}).shapes}
