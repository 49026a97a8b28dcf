"""Forms: from a type to the flat schema that a client can show its user, and from the user's answer back to the type.

A form is an object of primitives, its choices are texts (EL-04, EL-05). What the engines of tool arguments make of a type is narrowed to
that; the same engine then reads the answer.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, get_args, get_origin

import msgspec
import typing_extensions
from msgspec import inspect as mi

from callboard.errors import CallboardError, RegistrationError
from callboard.server.annotation import needs_pydantic, parts
from callboard.server.arguments import Arguments
from callboard.server.docstring import Docstring
from callboard.server.faults import ArgumentFaults, Fault, show_path
from callboard.server.json_schema import json_default
from callboard.server.judge import Judge
from callboard.server.msgspec_schema import is_convertible
from callboard.server.schema import compile_arguments
from callboard.server.signature import EMPTY, Parameter, Signature, plain_type
from callboard.server.subschemas import resolve
from callboard.wire import v2026_07_28 as v

__all__ = ["Form", "FormError", "compile_form"]

MAX_FORMS = 1_024
"""How many compiled forms are kept, of types and of raw schemas each."""

_Node = dict[str, Any]
_VALUE = "value"
"""Name of the only field of a form that is made of a bare type."""
_KEPT: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
}
"""What a form can say of each type; what it can't is checked when the answer is read."""
_NOTHING = (
    "is nothing that can be asked for; use a dataclass, Struct, TypedDict, attrs class or pydantic model, or one of "
    "str, int, float, bool, a date, a Literal, an Enum."
)
_QUALIFIERS: tuple[Any, ...] = (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.ReadOnly)
_EXPECTED_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_ROOT = frozenset({"$schema", "type", "properties", "required", "title", "description", "additionalProperties"})
_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|passcode|secret|token|cvv|cvc|pin|(api|access|private|secret)_?key|card_?number|credit_?card)"
    r"\d*(_(again|repeat|confirm(ation)?))?$"
)


# As lenient as the engine: people write times without an offset. Emails and URIs are checked by the schema's own library.
_FORMATS = {"date": is_convertible(dt.date), "date-time": is_convertible(dt.datetime)}


class FormError(CallboardError):
    """An answer that doesn't fit its form. The text lists every fault and repeats no value.

    Args:
        faults: What is wrong, by field.

    Attributes:
        faults: As given.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "\n".join(["The answer doesn't fit the form:", *(f"- {one.path or 'form'}: {one.expected}" for one in self.faults)])
        )


class Form:
    """A compiled form.

    Args:
        schema: The `requestedSchema`.
        convert: Makes the value of the content that the schema has nothing against; raises `FormError`.
        absent: What stands for fields that were left out and that `convert` doesn't fill in by itself.
        nullable: Fields that may be None, which no form can say: leaving them out means it.

    Attributes:
        schema: As given.
    """

    __slots__ = ("_absent", "_convert", "_judge", "_nullable", "schema")

    def __init__(
        self,
        schema: _Node,
        convert: Callable[[_Node], Any],
        *,
        absent: _Node | None = None,
        nullable: frozenset[str] = frozenset(),
    ) -> None:
        self.schema = schema
        self._convert = convert
        self._absent = absent or {}
        self._nullable = nullable
        self._judge = Judge(schema, _FORMATS)

    def read(self, content: Any) -> Any:
        """Make a value of the type of what the user filled in. Defaults stand in for what was left out (EL-06).

        Fields that the form doesn't have are dropped; `5.0` is an integer where one is asked for. Nothing else is coerced.

        Args:
            content: `content` of an `ElicitResult`, as plain JSON values.

        Raises:
            FormError: It doesn't fit. All faults are listed.
        """
        if not isinstance(content, dict):
            raise FormError([Fault("", "must be an object with the form's fields")])
        given = {**self._absent, **{name: content[name] for name in self.schema["properties"] if name in content}}
        shown = {name: value for name, value in given.items() if value is not None or name not in self._nullable}
        faults: dict[str, str] = {}
        value = None
        try:
            value = self._convert(given)
        except FormError as refusal:
            faults = {fault.path: fault.expected for fault in refusal.faults}
        except (TypeError, ValueError):
            raise FormError([Fault("", "must be JSON values")]) from None
        for path, expected in self._judge.findings(shown)[0]:
            faults.setdefault(show_path(path), expected)
        if faults:
            order = {name: at for at, name in enumerate(self.schema["properties"])}
            listed = sorted(faults.items(), key=lambda fault: order.get(fault[0].partition("[")[0], -1))
            raise FormError(Fault(path, expected.removesuffix(" or null")) for path, expected in listed)
        return value


class _Misfit(Exception):  # noqa: N818 it becomes a RegistrationError
    """A schema says what no form can. The text is the reason and the way out."""


def compile_form(kind: Any) -> Form:
    """Compile a form. It is kept: asking for the same type again costs a look-up.

    Args:
        kind: A dataclass, msgspec Struct, TypedDict, attrs class or pydantic model; a JSON Schema as a mapping, whose answers stay dicts;
            None for a form without fields; or a bare type, which is a form with the one field `value`.

    Choices are `Literal["a", "b"]` or an Enum with texts as values, several at once `list[...]` of those. Titles of choices stand beside the
    type, `Annotated[Literal["eu", "us"], {"eu": "Frankfurt"}]`; without them an Enum's member names are the titles where they say more than
    the values do (`FAST = "f"` is shown as "Fast").

    Raises:
        RegistrationError: No form can ask for it. The text names type, field and way out.
    """
    if kind is None:
        return Form({"type": "object", "properties": {}}, lambda _: None)
    if isinstance(kind, Mapping):
        try:
            data = msgspec.json.encode(dict(kind))
        except (TypeError, ValueError, RecursionError) as error:
            raise RegistrationError(f"The form's schema is no JSON ({error}).") from None
        return _raw_form(data)
    try:
        return _known_form(kind, repr(kind))
    except RegistrationError:
        raise
    except TypeError:  # titles in an Annotated can't be hashed
        return _typed_form(kind)


@functools.lru_cache(MAX_FORMS)
def _known_form(kind: Any, _order: str) -> Form:
    """`Literal["a", "b"]` equals `Literal["b", "a"]`, so their order is a part of the key."""
    return _typed_form(kind)


def _typed_form(kind: Any) -> Form:
    label = f"The form {_shown(kind)}"
    arguments = _compile(kind, label)
    root = arguments.input_schema
    whole, _ = _open(root["properties"][_VALUE], root)
    cls = plain_type(kind)
    is_bare = "properties" not in whole
    if not is_bare and not isinstance(cls, type):  # pydantic calls functions
        raise RegistrationError(f"{label} {_NOTHING}")
    asked = root if is_bare else whole
    annotations = {_VALUE: kind} if is_bare else _annotations(cls)
    factories = {} if is_bare else _factories(cls)
    properties: _Node = {}
    nullable = set()
    for name, schema in asked["properties"].items():
        annotation = annotations.get(name, Any)
        try:
            node, may_be_none = _open(schema, root)
            node = _primitive(node, root)
            if node["type"] == "array" and "default" not in node and name in factories:
                node.update(json_default(factories[name](), annotation))
            properties[name] = _annotated(node, list(parts(annotation)))
            _check_secret(name, schema, properties[name])
        except _Misfit as misfit:
            raise RegistrationError(f"{label}: field {name!r} is {_shown(annotation)}: {misfit}.") from None
        if may_be_none:
            nullable.add(name)
    required = [name for name in asked.get("required", ()) if name not in nullable]
    absent = dict.fromkeys(nullable.intersection(asked.get("required", ())))
    if typing_extensions.is_typeddict(cls):  # others know their defaults
        absent |= {name: node["default"] for name, node in properties.items() if "default" in node}
    return Form(
        {"type": "object", "properties": properties, **({"required": required} if required else {})},
        functools.partial(_read, arguments, is_bare=is_bare),
        absent=absent,
        nullable=frozenset(nullable),
    )


def _compile(kind: Any, label: str) -> Arguments:
    """Compile a type as the only argument of a call."""
    try:
        return compile_arguments(_call_with(kind, label))
    except RegistrationError as error:
        for name, annotation in _annotations(plain_type(kind)).items():
            probe: Any = annotation if needs_pydantic(kind) else msgspec.defstruct("_", [(_VALUE, annotation)])
            try:
                compile_arguments(_call_with(probe, label))
            except RegistrationError:
                raise RegistrationError(
                    f"{label}: field {name!r} is {_shown(annotation)}, which no form can ask for; "
                    "use str, int, float, bool, a date, a Literal or an Enum."
                ) from error
        if not (isinstance(kind, type) or get_origin(kind)):  # a value, where a type is asked for
            raise RegistrationError(f"{label} {_NOTHING}") from None
        raise RegistrationError(f"{label} {_NOTHING} [{error}]") from None


def _call_with(kind: Any, label: str) -> Signature:
    return Signature(label, label, Docstring(), (Parameter(_VALUE, kind),), {}, EMPTY, is_async=False, call=lambda **_: None)


def _read(arguments: Arguments, given: _Node, *, is_bare: bool) -> Any:
    try:
        return arguments.bind(msgspec.json.encode(given if is_bare else {_VALUE: given}))[_VALUE]
    except ArgumentFaults as refusal:
        way = "" if is_bare else _VALUE
        raise FormError(Fault(one.path.removeprefix(way).removeprefix("."), one.expected) for one in refusal.faults) from None


def _annotations(cls: Any) -> dict[str, Any]:
    """Annotations of a class's fields, by the names that clients see."""
    try:
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 an annotation is code; the engine has said what is wrong with it
        return {}
    names: dict[str, Any] = {}
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(cls)}
    if (fields := getattr(cls, "__pydantic_fields__", None)) is not None:
        hints = {name: hints[name] for name in fields if name in hints}
        names = {name: alias for name, field in fields.items() if isinstance(alias := field.validation_alias, str)}
    return {names.get(name, name): _unwrapped(kind) for name, kind in hints.items() if not _is_of_class(kind)}


def _is_of_class(annotation: Any) -> bool:
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _unwrapped(annotation: Any) -> Any:
    """What a field of a TypedDict is, whether it must be there or not."""
    while get_origin(annotation) in _QUALIFIERS:
        (annotation,) = get_args(annotation)
    return annotation


def _factories(cls: Any) -> dict[str, Callable[[], Any]]:
    """What makes the defaults of lists: a class can't hold them as they are."""
    fields = getattr(mi.type_info(cls), "fields", ())
    return {field.encode_name: field.default_factory for field in fields if field.default_factory is not msgspec.NODEFAULT}


def _open(node: _Node, root: _Node) -> tuple[_Node, bool]:
    """Follow references and the one alternative beside null; and whether null may stand there."""
    nullable = False
    while True:
        rest = {key: value for key, value in node.items() if key not in {"$ref", "anyOf"}}
        branches = [branch for branch in node.get("anyOf", ()) if branch.get("type") != "null"]
        nullable = nullable or len(branches) < len(node.get("anyOf", ()))
        if "$ref" in node:
            node = {**resolve(root, node["$ref"]), **rest}
        elif len(branches) == 1:
            node = {**branches[0], **rest}
        else:
            break
    if None in node.get("enum", ()):
        return {**node, "enum": [choice for choice in node["enum"] if choice is not None]}, True
    return node, nullable


def _primitive(node: _Node, root: _Node) -> _Node:
    """What a form can say of a schema; a new dict."""
    kind = node.get("type")
    schema: _Node
    if "enum" in node or "const" in node:
        schema = {"type": "string", "enum": _choices(node)}
    elif kind == "array":
        items, _ = _open(node.get("items") or {}, root)
        if "enum" not in items and "const" not in items:
            raise _Misfit("a form has lists of choices only; use list[Literal[...]], a list of an Enum, or one str")
        schema = {"type": "array", "items": {"type": "string", "enum": _choices(items)}}
        schema |= {key: node[key] for key in ("minItems", "maxItems") if key in node}
    elif isinstance(kind, str) and kind in _KEPT and "contentEncoding" not in node:
        schema = {"type": kind, **{key: node[key] for key in _KEPT[kind] if key in node}, **_inclusive(node)}
        if schema.get("format", "email") not in _EXPECTED_FORMATS:
            del schema["format"]
    else:
        raise _Misfit(_reason(node))
    schema |= {key: node[key] for key in ("title", "description") if isinstance(node.get(key), str)}
    return {**schema, "default": node["default"]} if node.get("default") is not None else schema


def _reason(node: _Node) -> str:
    if node.get("type") == "object":
        return "a form is flat; put its fields into the form itself, or ask twice"
    if "contentEncoding" in node:
        return "a form takes no bytes; let the user upload them with elicit_url"
    if "anyOf" in node or isinstance(node.get("type"), list):
        return "a field of a form has one kind of value; choose one, or use str"
    return "a form asks for texts, numbers, booleans and choices; use one of str, int, float, bool, Literal"


def _choices(node: _Node) -> list[str]:
    choices = node.get("enum", [node.get("const")])
    if not all(isinstance(choice, str) for choice in choices):
        raise _Misfit('a form has texts as choices; use Literal["1", "2"], or an Enum with texts as values')
    return list(choices)


def _inclusive(node: _Node) -> _Node:
    """Limits that a form can't say as the nearest that it can. The engine holds answers to the real ones."""
    step = 1 if node["type"] == "integer" else 0
    limits = {}
    if "exclusiveMinimum" in node:
        limits["minimum"] = node["exclusiveMinimum"] + step
    if "exclusiveMaximum" in node:
        limits["maximum"] = node["exclusiveMaximum"] - step
    return limits


def _annotated(node: _Node, marks: list[Any]) -> _Node:
    """Put in what stands in an annotation beside the type: titles of choices, a description."""
    for mark in marks:
        text = mark if isinstance(mark, str) else getattr(mark, "documentation", None)
        if isinstance(text, str) and not isinstance(mark, type):
            node.setdefault("description", text)
    holder = node.get("items", node)
    choices = holder.get("enum")
    if choices is None or (titles := _titles(choices, marks)) is None:
        return node
    titled = [{"const": choice, "title": titles[choice]} for choice in choices]
    if holder is not node:
        return {**node, "items": {"anyOf": titled}}
    return {key: value for key, value in {"type": "string", "oneOf": titled, **node}.items() if key != "enum"}


def _titles(choices: list[str], marks: list[Any]) -> dict[str, str] | None:
    """Title of each choice; None where they would say nothing new."""
    said = next((mark for mark in marks if isinstance(mark, Mapping)), None)
    if said is not None:
        titles = {key.value if isinstance(key, Enum) else key: title for key, title in said.items()}
        if strange := titles.keys() - set(choices):
            raise _Misfit(f"there are titles for {sorted(map(str, strange))}, which are none of its choices; correct the keys")
        return {choice: str(titles.get(choice, choice)) for choice in choices}
    enum = next((mark for mark in marks if isinstance(mark, type) and issubclass(mark, Enum)), None)
    if enum is None:
        return None
    names = {member.value: member.name.replace("_", " ") for member in enum}
    if all(name.casefold() == re.sub(r"[_\-]", " ", value).casefold() for value, name in names.items()):
        return None
    return {value: name.capitalize() if name.isupper() else name for value, name in names.items()}


def _check_secret(name: str, schema: _Node, node: _Node) -> None:
    """EL-10. An error, not a warning: what a user has typed into a form can't be taken back, and a field is renamed in a second."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()
    is_free = (
        node["type"] in {"string", "integer"} and not node.keys() & {"enum", "oneOf"} and not node.get("format", "").startswith("date")
    )
    if schema.get("format") == "password" or schema.get("writeOnly") is True or (is_free and _SECRET.search(snake)):
        raise _Misfit("secrets must not be asked for in a form; ask with elicit_url (if it is none, give it another name)")


@functools.lru_cache(MAX_FORMS)
def _raw_form(data: bytes) -> Form:
    """A form by a schema of the author's, which is sent as it is."""
    schema = msgspec.json.decode(data)
    label = "The form's schema"
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict):
        raise RegistrationError(f'{label} must have "type": "object" and "properties" at its root.')
    if strange := schema.keys() - _ROOT:
        raise RegistrationError(f"{label} has {sorted(strange)} at its root, which no client knows; a form is a flat list of fields.")
    for name, node in properties.items():
        try:
            _check_raw(node)
            _check_secret(name, node, node)
        except _Misfit as misfit:
            raise RegistrationError(f"{label}: field {name!r}: {misfit}.") from None
    required = schema.get("required", [])
    if not isinstance(required, list) or any(name not in properties for name in required):
        raise RegistrationError(f"{label}: 'required' must be a list of names of its fields.")
    form = Form(schema, dict, absent={name: node["default"] for name, node in properties.items() if "default" in node})
    try:
        Judge(schema, _FORMATS).compile()
    except ValueError as error:
        raise RegistrationError(f"{label} can't be used: {str(error).splitlines()[0]}.") from None
    return form


def _check_raw(node: Any) -> None:
    """Hold a field's schema to the protocol's definitions."""
    definition = _definition(node) if isinstance(node, dict) else None
    if definition is None:
        raise _Misfit('its "type" must be one of string, integer, number, boolean, or array with choices as items')
    try:
        msgspec.convert(node, definition)
    except msgspec.ValidationError as error:
        raise _Misfit(f"the protocol's {definition.__name__} doesn't allow it ({error})") from None
    if node["type"] != "string" and node.keys() & {"enum", "const", "oneOf"}:
        raise _Misfit('choices are texts: its "type" must be string, or array with them as items')
    if "enumNames" in node and len(node["enumNames"]) != len(node["enum"]):
        raise _Misfit("enumNames must have a name for each of enum")


def _definition(node: _Node) -> Any:
    kind = node.get("type")
    if kind == "string":
        return v.TitledSingleSelectEnumSchema if "oneOf" in node else v.LegacyTitledEnumSchema if "enum" in node else v.StringSchema
    if kind == "array":
        items = node.get("items")
        return v.TitledMultiSelectEnumSchema if isinstance(items, dict) and "anyOf" in items else v.UntitledMultiSelectEnumSchema
    if kind == "boolean":
        return v.BooleanSchema
    return v.NumberSchema if kind in ("integer", "number") else None


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind).replace("typing.", "")
