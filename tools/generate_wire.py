"""Write `src/callboard/wire/v2026_07_28.py` from the protocol's JSON Schema.

    python tools/generate_wire.py SCHEMA.json            # write the module
    python tools/generate_wire.py SCHEMA.json --check    # exit 1 and show the difference if the module is not what would be written

Every definition of the schema becomes one name of the module: an object a `msgspec.Struct`, an enum a `Literal`, the rest an alias.
The rules are few and mechanical; where one of them can't give a type that msgspec decodes, or gives one that would lose something,
the tables below say what stands there instead, and why. A definition that fits neither a rule nor a table is an error here, not a guess.

Rules:
- An optional property is `T | UnsetType = UNSET`: it is left out when unset, and `null` is refused where the schema refuses it.
- A required property has no default, unless it is a constant or stands in `DEFAULTS`: then it is always sent. `OPTIONAL` ones may be absent.
- A required constant named `type`, `method` or `mode` is the Struct's tag, which makes unions over it decode in one pass.
- Attributes are snake_case; `_meta` is `meta`, and a key with a prefix (`io.modelcontextprotocol/logLevel`) drops it.
- An object that allows further properties stays a `dict`, for a Struct would lose them.
"""

import argparse
import difflib
import json
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

JSONSchema: TypeAlias = Mapping[str, Any]

TARGET = Path(__file__).resolve().parent.parent / "src" / "callboard" / "wire" / "v2026_07_28.py"
WIDTH = 140
TAGS = ("type", "method", "mode")


class Override(NamedTuple):
    """What stands in the module instead of what the rules would give."""

    annotation: str
    reason: str


OPEN_META = "`_meta` is an open map: keys that this schema does not name have to survive a decode"
BY_REQUEST = "no property tells the members apart; whoever reads it knows what was asked and decodes it then"
SCHEMA_MAP = "a JSON Schema fragment is a map, as in Tool.inputSchema: keywords that this schema does not name have to survive"

# "Name": the whole definition. "Name.property" (or "*.property"): one property. "->Name": what a property holds that refers to Name.
OVERRIDES: dict[str, Override] = {
    "->RequestMetaObject": Override("Raw", "the server lifts the envelope once per request, with a decoder of RequestMetaObject"),
    "->ResultMetaObject": Override("MetaObject", OPEN_META),
    "->NotificationMetaObject": Override("MetaObject", OPEN_META),
    "->SubscriptionsListenResultMetaObject": Override("MetaObject", OPEN_META),
    "CallToolRequestParams.arguments": Override("Raw", "the tool's own compiled decoder reads them, once"),
    "CallToolResultResponse.result": Override("Raw", "resultType decides the type, and its absence means complete (JR-14)"),
    "GetPromptResultResponse.result": Override("Raw", "resultType decides the type, and its absence means complete (JR-14)"),
    "ReadResourceResultResponse.result": Override("Raw", "resultType decides the type, and its absence means complete (JR-14)"),
    "JSONRPCResultResponse.result": Override("Raw", BY_REQUEST),
    "InputResponse": Override("Raw", BY_REQUEST),
    "ClientNotification": Override("CancelledNotification", "the published schema spells the only member of this union out again"),
    "JSONValue": Override("Any", "the published schema leaves out null and fractions, and recursion buys nothing here"),
    "PrimitiveSchemaDefinition": Override("JSONObject", SCHEMA_MAP),
    "EnumSchema": Override("JSONObject", SCHEMA_MAP),
    "SingleSelectEnumSchema": Override("JSONObject", SCHEMA_MAP),
    "MultiSelectEnumSchema": Override("JSONObject", SCHEMA_MAP),
    "*.requestedSchema": Override("JSONObject", SCHEMA_MAP),
    "*.code": Override("int", "errors.py alone holds the numbers"),
    "*.ttlMs": Override("int", "a client reads a negative one as 0 (CA-04), so it must decode"),
    "ElicitResult.content": Override(
        "dict[str, str | int | float | bool | list[str]]", "the published schema says integer where its source says number (EL-07)"
    ),
}

# Unions without a tag that msgspec can't decode, as one Struct with the properties of all members; what not all require is optional.
MERGED: dict[str, tuple[tuple[str, ...], str]] = {
    "ResourceContents": (("TextResourceContents", "BlobResourceContents"), "either `text` or `blob` is set"),
    "ElicitRequestParams": (("ElicitRequestFormParams", "ElicitRequestURLParams"), "an absent `mode` means form (EL-03)"),
}

# Unions for annotations only: nothing decodes them as such, for `wire.jsonrpc` and the method table already know which member it is.
UNTAGGED = frozenset({"JSONRPCMessage", "JSONRPCResponse", "ServerResult"})

# Properties that are always sent and may be absent from what an older peer sends. "Name.property" goes before "property".
DEFAULTS: dict[str, Override] = {
    "resultType": Override('"complete"', "JR-13, JR-14"),
    "InputRequiredResult.resultType": Override('"input_required"', "MR-01"),
    "ttlMs": Override("0", "CA-04: stale at once"),
    "cacheScope": Override('"private"', "CA-06: never shared unless said so"),
    "ElicitRequestParams.mode": Override('"form"', "EL-03"),
}

# Required properties that may be absent all the same, and why; keys as in OVERRIDES.
OPTIONAL: dict[str, str] = {
    "->RequestMetaObject": "requests of 2025 clients have no `_meta`; the current era checks its own (MT-01)",
}

# Names for the objects that the schema writes in place.
INLINE: dict[str, str] = {
    "ClientCapabilities.elicitation": "ElicitationCapability",
    "ClientCapabilities.sampling": "SamplingCapability",
    "CompleteRequestParams.argument": "CompletionArgument",
    "CompleteRequestParams.context": "CompletionContext",
    "CompleteResult.completion": "Completion",
    "HeaderMismatchError.error": "HeaderMismatchErrorObject",
    "ListRootsRequest.params": "ListRootsRequestParams",
    "MissingRequiredClientCapabilityError.error": "MissingRequiredClientCapabilityErrorObject",
    "MissingRequiredClientCapabilityError.error.data": "MissingRequiredClientCapabilityData",
    "ServerCapabilities.prompts": "PromptsCapability",
    "ServerCapabilities.resources": "ResourcesCapability",
    "ServerCapabilities.tools": "ToolsCapability",
    "TitledMultiSelectEnumSchema.items": "TitledEnumItems",
    "TitledMultiSelectEnumSchema.items.anyOf[]": "EnumOption",
    "TitledSingleSelectEnumSchema.oneOf[]": "EnumOption",
    "UnsupportedProtocolVersionError.error": "UnsupportedProtocolVersionErrorObject",
    "UnsupportedProtocolVersionError.error.data": "UnsupportedProtocolVersionData",
    "UntitledMultiSelectEnumSchema.items": "UntitledEnumItems",
}

SCALARS = {"string": "str", "integer": "int", "number": "int | float", "boolean": "bool", "null": "None"}
BOUNDS = {"minimum": "ge", "maximum": "le", "minItems": "min_length", "maxItems": "max_length"}
SAID = ("description", "format", "default")  # what changes no type
READ = ("$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "items", "properties", "required", "type")
KEYWORDS = frozenset((*SAID, *READ, *BOUNDS))

HEADER = '''\
# Generated by tools/generate_wire.py from the JSON Schema of protocol 2026-07-28: edit that tool, not this file.
"""The vocabulary of protocol 2026-07-28: a Struct, Literal or alias for every definition of its JSON Schema.

`tools/generate_wire.py` states the rules at its head and every exception, with its reason, in its tables. In short:
optional properties default to `UNSET` and are then not sent; constants are tags or defaults; unknown properties are ignored;
what another decoder reads later (`_meta` of a request, tool arguments, input responses) is `msgspec.Raw`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
'''


class SchemaError(Exception):
    """The schema holds something that neither a rule nor a table of this tool covers; the text names it and the table."""


@dataclass
class Shape:
    """One Struct to write: where it stands in the schema, its tag if any, and its attribute lines."""

    origin: str
    tag: tuple[str, str] | None
    lines: list[str]


@dataclass
class Module:
    """What has been collected from the definitions so far."""

    definitions: Mapping[str, JSONSchema]
    names: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def define(self, name: str) -> None:
        """Add the definition `name` as a Struct or an alias.

        Raises:
            SchemaError: No rule and no table covers it.
        """
        schema = self.definitions[name]
        require_keywords(schema, name)
        if name in OVERRIDES:
            self.aliases[name] = OVERRIDES[name].annotation
        elif name in MERGED:
            self.define_struct(name, merge_union(self.definitions, name), name)
        elif is_struct(schema):
            self.define_struct(name, schema, name)
        else:
            self.aliases[name] = self.annotate(schema, name)
            if len(schema.get("anyOf", ())) > 1 and name not in UNTAGGED:
                self.require_tags(name, schema)

    def require_tags(self, name: str, schema: JSONSchema) -> None:
        """Refuse a union of objects that msgspec could not decode.

        Raises:
            SchemaError: Two members are objects that no tag tells apart.
        """
        members = [reference_name(member) for member in schema["anyOf"]]
        tags = [find_tag(self.definitions[member]) for member in members]
        if None in tags or len({tag[0] for tag in tags if tag}) > 1 or len(set(tags)) < len(tags):
            raise SchemaError(f"{name}: no tag tells {', '.join(members)} apart. Add it to OVERRIDES, MERGED or UNTAGGED.")

    def define_struct(self, name: str, schema: JSONSchema, path: str) -> None:
        """Add a Struct called `name`; `path` is where its properties stand for the tables.

        Raises:
            SchemaError: Two different objects claim one name.
        """
        tag = find_tag(schema)
        lines = [self.attribute(key, value, schema, path) for key, value in in_order(schema) if not tag or key != tag[0]]
        known = self.shapes.setdefault(name, Shape(path, tag, lines))
        if (known.tag, known.lines) != (tag, lines):
            raise SchemaError(f"{path}: differs from {known.origin}, but both are called {name}. Give it a name of its own in INLINE.")

    def attribute(self, key: str, schema: JSONSchema, parent: JSONSchema, path: str) -> str:
        """Render one property as an attribute line and remember how its name is spelled on the wire.

        Raises:
            SchemaError: The attribute's name already stands for another property.
        """
        name = attribute_name(key)
        if self.names.setdefault(name, key) != key:
            raise SchemaError(f"{path}.{key}: attribute {name} already stands for {self.names[name]}. Extend attribute_name().")
        kind = self.annotate(schema, f"{path}.{key}")
        default = DEFAULTS.get(f"{path}.{key}") or DEFAULTS.get(key)
        if default:
            return f"{name}: {kind} = {default.annotation}"
        if key not in parent.get("required", ()) or f"->{schema.get('$ref', '').rpartition('/')[2]}" in OPTIONAL:
            return f"{name}: Any = UNSET" if kind == "Any" else f"{name}: {kind} | UnsetType = UNSET"
        if "const" in schema and isinstance(schema["const"], str):
            return f"{name}: {kind} = {quote(schema['const'])}"
        return f"{name}: {kind}"

    def annotate(self, schema: JSONSchema, path: str) -> str:
        """Render the type of `schema`.

        Raises:
            SchemaError: It uses a form that this tool does not know.
        """
        require_keywords(schema, path)
        override = OVERRIDES.get(path) or OVERRIDES.get(f"*.{path.rpartition('.')[2]}")
        if override:
            return override.annotation
        if "$ref" in schema:
            name = reference_name(schema)
            return OVERRIDES[f"->{name}"].annotation if f"->{name}" in OVERRIDES else name
        if "const" in schema or "enum" in schema:
            return f"Literal[{', '.join(quote(value) for value in schema.get('enum', [schema.get('const')]))}]"
        if "anyOf" in schema:
            return self.annotate_union(schema["anyOf"], path)
        if "allOf" in schema:
            return self.annotate_inline(merge_all(self.definitions, schema["allOf"]), path)
        return self.annotate_type(schema, path)

    def annotate_union(self, members: list[JSONSchema], path: str) -> str:
        """Render a union, or the Struct of MERGED that stands for it."""
        names = tuple(reference_name(member) for member in members if "$ref" in member)
        for merged, (parts, _) in MERGED.items():
            if names == parts:
                return merged
        return " | ".join(self.annotate(member, path) for member in members)

    def annotate_inline(self, schema: JSONSchema, path: str) -> str:
        """Render an object written in place as a Struct of its own.

        Raises:
            SchemaError: INLINE has no name for it.
        """
        if path not in INLINE:
            raise SchemaError(f"{path}: an object written in place. Give it a name in INLINE.")
        self.define_struct(INLINE[path], schema, path)
        return INLINE[path]

    def annotate_type(self, schema: JSONSchema, path: str) -> str:
        """Render a schema that is told by its `type`, or by nothing.

        Raises:
            SchemaError: The type is unknown.
        """
        kind = schema.get("type")
        if kind is None:
            return "Any"
        if isinstance(kind, list):
            return " | ".join(SCALARS[one] for one in kind)
        if kind == "object":
            if is_struct(schema) and schema["properties"]:
                return self.annotate_inline(schema, path)
            values = schema.get("additionalProperties", {}) if not schema.get("properties") else {}
            return f"dict[str, {self.annotate(values, f'{path}{{}}')}]"
        if kind == "array":
            return bound(f"list[{self.annotate(schema.get('items', {}), f'{path}[]')}]", schema)
        if kind not in SCALARS:
            raise SchemaError(f"{path}: type {kind!r} is unknown. Teach annotate_type().")
        return " | ".join(bound(part, schema) for part in SCALARS[kind].split(" | "))


def require_keywords(schema: JSONSchema, path: str) -> None:
    """Refuse a schema that says something this tool would drop.

    Raises:
        SchemaError: It uses a keyword that no rule reads.
    """
    if unknown := sorted(set(schema) - KEYWORDS):
        raise SchemaError(f"{path}: keyword {', '.join(unknown)} is unknown. Teach annotate() or bound(), then add it to KEYWORDS.")


def is_struct(schema: JSONSchema) -> bool:
    """Tell whether an object's properties are the ones it names, so that a Struct loses nothing that the schema speaks of."""
    properties = schema.get("properties")
    # Result is open so that every method's result is one; what it holds besides `_meta` belongs to the method.
    return properties is not None and ("additionalProperties" not in schema or "_meta" in properties)


def find_tag(schema: JSONSchema) -> tuple[str, str] | None:
    """Return property and value of the constant that names an object's type, or None."""
    for key in TAGS:
        if key in schema.get("required", ()) and isinstance(schema["properties"][key].get("const"), str):
            return key, schema["properties"][key]["const"]
    return None


def in_order(schema: JSONSchema) -> Iterator[tuple[str, JSONSchema]]:
    """Yield an object's properties, the required ones first."""
    required = schema.get("required", ())
    yield from sorted(schema["properties"].items(), key=lambda item: (item[0] not in required, item[0]))


def merge_union(definitions: Mapping[str, JSONSchema], name: str) -> JSONSchema:
    """Make one object of a union's members: all properties, required where each member requires them."""
    members = [definitions[member] for member in MERGED[name][0]]
    properties: dict[str, dict[str, Any]] = {}
    for member in members:
        for key, value in member["properties"].items():
            known = properties.setdefault(key, dict(value))
            if known.get("const") != value.get("const"):
                properties[key] = {"type": "string", "enum": [known["const"], value["const"]]}
    return {"type": "object", "properties": properties, "required": set.intersection(*(set(member["required"]) for member in members))}


def merge_all(definitions: Mapping[str, JSONSchema], parts: list[JSONSchema]) -> JSONSchema:
    """Make one object of all parts of an `allOf`; the later parts are the narrower ones."""
    objects = [definitions[reference_name(part)] if "$ref" in part else part for part in parts]
    properties = {key: value for part in objects for key, value in part["properties"].items()}
    return {"type": "object", "properties": properties, "required": {key for part in objects for key in part.get("required", ())}}


def reference_name(schema: JSONSchema) -> str:
    """Return the name of the definition that `schema` refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def attribute_name(key: str) -> str:
    """Return the attribute for a property: no prefix, no leading `_` or `$`, snake_case, never a keyword."""
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key.rpartition("/")[2].lstrip("_$")).lower()
    return f"{name}_" if keyword.iskeyword(name) else name


def bound(kind: str, schema: JSONSchema) -> str:
    """Add the schema's limits to a type."""
    limits = ", ".join(f"{BOUNDS[key]}={schema[key]}" for key in BOUNDS if key in schema)
    return f"Annotated[{kind}, Meta({limits})]" if limits else kind


def quote(value: object) -> str:
    """Render a string constant as the formatter would."""
    return json.dumps(value, ensure_ascii=False)


def collect(schema: JSONSchema) -> Module:
    """Read all definitions of a JSON Schema document.

    Raises:
        SchemaError: A definition fits no rule and no table.
    """
    module = Module(schema["$defs"])
    for name in sorted(module.definitions):
        module.define(name)
    return module


def render(module: Module) -> str:
    """Return the text of the module, as the formatter would leave it."""
    renamed = {name: key for name, key in sorted(module.names.items()) if name != key}
    parts = [
        HEADER,
        "\nNAMES = {\n" + "".join(f"    {quote(name)}: {quote(key)},\n" for name, key in renamed.items()) + "}\n",
        '"""Attribute -> property, where they differ; the same in every Struct."""\n',
        "".join(render_struct(name, shape) for name, shape in sorted(module.shapes.items())),
        "\n\n",
        "".join(render_alias(name, text) for name, text in in_dependency_order(module.aliases)),
    ]
    return "".join(parts)


def in_dependency_order(aliases: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield aliases so that each follows those it names; otherwise by name."""
    pending = dict(sorted(aliases.items()))
    while pending:
        name = next(name for name, text in pending.items() if pending.keys().isdisjoint(re.findall(r"\w+", text)))
        yield name, pending.pop(name)


def render_alias(name: str, text: str) -> str:
    """Return one alias, a member a line where it is too long."""
    line = f"{name}: TypeAlias = {text}\n"
    if len(line) <= WIDTH:
        return line
    members = text.split(" | ")
    return f"{name}: TypeAlias = (\n    {members[0]}\n" + "".join(f"    | {member}\n" for member in members[1:]) + ")\n"


def render_struct(name: str, shape: Shape) -> str:
    """Return one class."""
    options = ["Struct", "kw_only=True", "rename=NAMES"]
    if shape.tag:
        options += [f"tag_field={quote(shape.tag[0])}", f"tag={quote(shape.tag[1])}"]
    head = f"class {name}({', '.join(options)}):\n"
    if len(head) > WIDTH:
        head = f"class {name}(\n    {', '.join(options)}\n):\n"
    body = "".join(f"    {line}\n" for line in shape.lines)
    return f'\n\n{head}    """`{shape.origin}` of the schema."""\n' + (f"\n{body}" if body else "")


def compare(path: Path, text: str) -> str:
    """Return a unified diff from what is in `path` to `text`; empty if equal."""
    current = path.read_text("utf-8") if path.exists() else ""
    return "".join(
        difflib.unified_diff(current.splitlines(keepends=True), text.splitlines(keepends=True), str(path.name), "generated", n=1)
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; see the head of this file. Returns 0, 1 for a difference found by `--check`, 2 for a schema not understood."""
    parser = argparse.ArgumentParser(description="Write the wire module from the protocol's JSON Schema.")
    parser.add_argument("schema", type=Path, help="path of the JSON Schema of protocol 2026-07-28")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the module differs from what would be written")
    parser.add_argument("--target", type=Path, default=TARGET, help="the module to write or check")
    options = parser.parse_args(arguments)
    try:
        text = render(collect(json.loads(options.schema.read_text("utf-8"))))
    except SchemaError as fault:
        print(f"{options.schema.name}: {fault}", file=sys.stderr)
        return 2
    difference = compare(options.target, text)
    if not difference:
        print(f"{options.target.name} is up to date")
    elif options.check:
        added, removed = (sum(line.startswith(sign) and not line.startswith(sign * 3) for line in difference.splitlines()) for sign in "+-")
        print(difference, end="")
        print(f"{options.target.name} differs from the schema: +{added} -{removed} lines. Run tools/generate_wire.py without --check.")
        return 1
    else:
        options.target.write_text(text, "utf-8")
        print(f"{options.target.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
