"""JSON Schema (2020-12) of what msgspec decodes and encodes.

msgspec has a generator of its own; this one differs where a model or a client reads the result: fields take their descriptions from the
class's docstring, there are no titles, enums stand in place, unions are flat, dates have a format where the value always has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect as mi

from callboard.server.annotation import field_types, parts
from callboard.server.arguments import Unsupported
from callboard.server.docstring import parse
from callboard.server.subschemas import walk

__all__ = ["Generator", "describe_fields", "inline_root", "json_default"]

_INTEGER_KEY = "^-?(0|[1-9][0-9]*)$"
_RANGE = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum", "multiple_of": "multipleOf"}
_LENGTH = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_ITEMS = {"min_length": "minItems", "max_length": "maxItems"}
_FIELDS = {"min_length": "minProperties", "max_length": "maxProperties"}

Schema = dict[str, Any]


class Generator:
    """Makes schemas that share one `$defs`.

    Args:
        output: Whether they describe what is sent rather than what is taken.

    Attributes:
        output: As given.
        nullable: Whether a value of the types met so far may have null in it.
        defs: Schemas of the classes met so far, by the name that `$ref`s use.
    """

    def __init__(self, *, output: bool) -> None:
        self.output = output
        self.nullable = False
        self._names: dict[Any, str] = {}
        self._literals: dict[frozenset[Any], list[Any]] = {}
        self.defs: dict[str, Schema] = {}

    def schema(self, kind: mi.Type) -> Schema:
        """Make the schema of a type.

        Args:
            kind: As `msgspec.inspect` gives it.

        Raises:
            Unsupported: A part of it has no JSON form.
        """
        extra: Schema = {}
        while isinstance(kind, mi.Metadata):
            extra = {**(kind.extra_json_schema or {}), **extra}
            kind = kind.type
        self.nullable = self.nullable or isinstance(kind, mi.AnyType | mi.RawType | mi.NoneType)
        build = _BUILDERS.get(type(kind))
        if build is None:
            raise Unsupported(None, f"msgspec can't handle {getattr(kind, 'cls', type(kind))!r}")
        return {**build(self, kind), **extra}

    def read(self, annotation: Any) -> Schema:
        """Make the schema of an annotation.

        Raises:
            Unsupported: A part of it has no JSON form.
            TypeError: msgspec refuses it.
            NameError: A name in it can't be resolved.
        """
        for part in parts(annotation):
            if get_origin(part) is Literal:
                self._literals.setdefault(frozenset(get_args(part)), list(get_args(part)))
        return self.schema(mi.type_info(annotation))

    def choices(self, kind: mi.LiteralType) -> list[Any]:
        """What a `Literal` allows in the author's order, which `msgspec.inspect` sorts away."""
        return self._literals.get(frozenset(kind.values), list(kind.values))

    def document(self, annotation: Any) -> Schema:
        """Make a schema that stands for itself, `$defs` included; see `inline_root` and `read`."""
        schema = self.read(annotation)
        return inline_root({**schema, "$defs": self.defs} if self.defs else schema)

    def define(self, kind: Any) -> Schema:
        """Refer to a class, giving it a place in `defs` when it is new."""
        name = self._names.get(kind.cls)
        if name is None:
            name = self._names[kind.cls] = self._unique(kind.cls)
            self.defs[name] = {}  # keeps its place while a recursive type is built
            as_array = isinstance(kind, mi.NamedTupleType) or getattr(kind, "array_like", False)
            self.defs[name].update(_array_like(self, kind) if as_array else _fields(self, kind))
        return {"$ref": f"#/$defs/{name}"}

    def _unique(self, cls: Any) -> str:
        name = re.sub(r"[^\w.\-]+", "_", _class_name(cls), flags=re.ASCII).strip("_") or "Object"
        taken = 1
        while (numbered := name if taken == 1 else f"{name}_{taken}") in self.defs:
            taken += 1
        return numbered


def _number(_: Generator, kind: mi.IntType | mi.FloatType) -> Schema:
    return {"type": "integer" if isinstance(kind, mi.IntType) else "number", **_limits(kind, _RANGE)}


def _string(_: Generator, kind: mi.StrType) -> Schema:
    return {"type": "string", **_limits(kind, _LENGTH)}


def _bytes(_: Generator, kind: mi.BytesType) -> Schema:
    limits = _limits(kind, {"min_length": "minLength", "max_length": "maxLength"})
    return {"type": "string", "contentEncoding": "base64", **{key: 4 * ((size + 2) // 3) for key, size in limits.items()}}


def _decimal(generator: Generator, _: mi.DecimalType) -> Schema:
    return {"type": "string"} if generator.output else {"type": ["string", "number"]}


def _moment(generator: Generator, kind: mi.DateTimeType | mi.TimeType) -> Schema:
    # RFC 3339 demands an offset. Whoever asserts formats would refuse a naive value of ours; as a hint for input it is good.
    name = "date-time" if isinstance(kind, mi.DateTimeType) else "time"
    return {"type": "string", "format": name} if kind.tz or not generator.output else {"type": "string"}


def _duration(generator: Generator, _: mi.TimeDeltaType) -> Schema:
    # what msgspec writes may be negative or have fractions, which RFC 3339 durations haven't
    return {"type": "string"} if generator.output else {"type": "string", "format": "duration"}


def _collection(generator: Generator, kind: mi.CollectionType) -> Schema:
    schema: Schema = {"type": "array"}
    if items := generator.schema(kind.item_type):
        schema["items"] = items
    if isinstance(kind, mi.SetType | mi.FrozenSetType):
        schema["uniqueItems"] = True
    return {**schema, **_limits(kind, _ITEMS)}


def _tuple(generator: Generator, kind: mi.TupleType) -> Schema:
    return _array([generator.schema(item) for item in kind.item_types], required=len(kind.item_types), closed=True)


def _dict(generator: Generator, kind: mi.DictType) -> Schema:
    schema: Schema = {"type": "object"}
    keys = generator.schema(kind.key_type)
    if keys.get("type") == "integer":
        keys = {"pattern": _INTEGER_KEY}
    elif keys.pop("type", None) != "string" or "contentEncoding" in keys:
        keys = {}
    if keys:
        schema["propertyNames"] = keys
    if values := generator.schema(kind.value_type):
        schema["additionalProperties"] = values
    return {**schema, **_limits(kind, _FIELDS)}


def _union(generator: Generator, kind: mi.UnionType) -> Schema:
    members = sorted(kind.types, key=lambda member: isinstance(member, mi.NoneType))
    return {"anyOf": [generator.schema(member) for member in members]}


def _literal(generator: Generator, kind: mi.LiteralType) -> Schema:
    return _choices(generator.choices(kind))


def _enum(_: Generator, kind: mi.EnumType) -> Schema:
    return _choices([member.value for member in kind.cls])


def _fields(generator: Generator, kind: Any) -> Schema:
    properties: Schema = {}
    required: list[str] = []
    if isinstance(kind, mi.StructType) and kind.tag_field is not None:
        properties[kind.tag_field] = _choices([kind.tag])
        required.append(kind.tag_field)
    types = field_types(kind.cls)
    order = list(types) if isinstance(kind, mi.TypedDictType) else []  # which `msgspec.inspect` sorts away
    for field in sorted(kind.fields, key=lambda field: order.index(field.name) if order else 0):
        properties[field.encode_name] = _field(generator, field, types)
        if field.required:
            required.append(field.encode_name)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if getattr(kind, "forbid_unknown_fields", False):
        schema["additionalProperties"] = False
    describe_fields(schema, _class_doc(kind.cls), {field.name: field.encode_name for field in kind.fields})
    return schema


def _array_like(generator: Generator, kind: Any) -> Schema:
    types = field_types(kind.cls)
    items = [_field(generator, field, types) for field in kind.fields]
    required = sum(1 for field in kind.fields if field.required)
    if getattr(kind, "tag_field", None) is not None:
        items.insert(0, _choices([kind.tag]))
        required += 1
    schema = _array(items, required=required, closed=isinstance(kind, mi.NamedTupleType) or kind.forbid_unknown_fields)
    describe_fields(schema, _class_doc(kind.cls), {})
    return schema


def _field(generator: Generator, field: mi.Field, types: dict[str, Any]) -> Schema:
    schema = generator.schema(field.type)
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory in {list, dict, set, frozenset, tuple}:
        default = field.default_factory()
    return {**schema, **json_default(default, types.get(field.name, Any))}


_BUILDERS: dict[type[mi.Type], Callable[[Generator, Any], Schema]] = {
    mi.AnyType: lambda _, __: {},
    mi.RawType: lambda _, __: {},
    mi.NoneType: lambda _, __: {"type": "null"},
    mi.BoolType: lambda _, __: {"type": "boolean"},
    mi.IntType: _number,
    mi.FloatType: _number,
    mi.StrType: _string,
    mi.BytesType: _bytes,
    mi.ByteArrayType: _bytes,
    mi.DateTimeType: _moment,
    mi.TimeType: _moment,
    mi.DateType: lambda _, __: {"type": "string", "format": "date"},
    mi.TimeDeltaType: _duration,
    mi.UUIDType: lambda _, __: {"type": "string", "format": "uuid"},
    mi.DecimalType: _decimal,
    mi.ListType: _collection,
    mi.SetType: _collection,
    mi.FrozenSetType: _collection,
    mi.VarTupleType: _collection,
    mi.TupleType: _tuple,
    mi.DictType: _dict,
    mi.UnionType: _union,
    mi.LiteralType: _literal,
    mi.EnumType: _enum,
    mi.StructType: Generator.define,
    mi.TypedDictType: Generator.define,
    mi.DataclassType: Generator.define,
    mi.NamedTupleType: Generator.define,
}


def inline_root(schema: Schema) -> Schema:
    """Resolve a `$ref` at the root, which clients reject (A22); a definition that nothing else refers to goes away."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    name = reference.removeprefix("#/$defs/")
    defs = dict(schema["$defs"])
    root = {**defs[name], **{key: value for key, value in schema.items() if key not in {"$ref", "$defs"}}}
    if not any(node.get("$ref") == reference for _, node in walk({"$defs": defs})):
        del defs[name]
    return {**root, "$defs": defs} if defs else root


def json_default(value: Any, kind: Any) -> Schema:
    """The keyword `default` for a value, where it has a JSON form and the type takes it.

    Args:
        value: The default; it may be a sentinel, or outside of what is asked of clients.
        kind: The annotation.
    """
    if value is msgspec.NODEFAULT or value is msgspec.UNSET:
        return {}
    try:
        data = msgspec.json.encode(value)
        msgspec.json.decode(data, type=kind)
        return {"default": msgspec.json.decode(data)}
    except Exception:  # noqa: BLE001 a default is any Python object
        return {}


def describe_fields(schema: Schema, doc: str | None, names: dict[str, str]) -> None:
    """Put a class's docstring into its schema: the text, and a description per field that has none.

    Args:
        schema: The class's schema.
        doc: The docstring.
        names: Field name in Python -> name in JSON, where they differ or matter.
    """
    docstring = parse(doc)
    if docstring.description:
        schema["description"] = docstring.description
    for name, text in docstring.params.items():
        field = schema.get("properties", {}).get(names.get(name, name))
        if isinstance(field, dict):
            field.setdefault("description", text)


def _limits(kind: Any, keywords: dict[str, str]) -> Schema:
    return {keyword: limit for name, keyword in keywords.items() if (limit := getattr(kind, name)) is not None}


def _choices(values: list[Any]) -> Schema:
    types = {str: "string", int: "integer", bool: "boolean"}
    found = {types.get(type(value)) for value in values}
    kind = found.pop() if len(found) == 1 else None
    return {"type": kind, "enum": values} if kind else {"enum": values}


def _array(items: list[Schema], *, required: int, closed: bool) -> Schema:
    schema: Schema = {"type": "array", "prefixItems": items, "minItems": required}
    if closed:
        schema["maxItems"] = len(items)
    if not items:
        del schema["prefixItems"]
    return schema


def _class_name(cls: Any) -> str:
    origin = getattr(cls, "__origin__", None)
    if origin is None:
        return str(cls.__name__)
    return f"{origin.__name__}_{'_'.join(getattr(arg, '__name__', str(arg)) for arg in cls.__args__)}"


def _class_doc(cls: Any) -> str | None:
    cls = getattr(cls, "__origin__", cls)
    doc = cls.__dict__.get("__doc__")
    generated = isinstance(doc, str) and doc.startswith(f"{cls.__name__}(")
    return doc if isinstance(doc, str) and not generated else None
