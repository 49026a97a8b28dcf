"""The engine for tools with pydantic types: one model per argument list, validated strictly; one type adapter per result.

pydantic is optional and heavy: it is imported when the first such tool is registered.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_origin

import msgspec

from callboard.server.annotation import Filler, compile_filler, rebuild
from callboard.server.arguments import MAX_LISTED, Misfit, TypedArguments, Unsupported
from callboard.server.coercion import parse_plain
from callboard.server.faults import MAX_FINDINGS, ArgumentFaults, Finding, covered
from callboard.server.json_schema import Generator, describe_fields, inline_root
from callboard.server.judge import Judge
from callboard.server.signature import EMPTY, Parameter, Signature
from callboard.server.subschemas import children, resolve, walk

__all__ = ["PydanticArguments", "PydanticResult"]

_log = logging.getLogger("callboard")
_STRUCT = "x-callboard-struct"
"""Stands for a Struct's schema until the definitions are put together."""
MAX_EFFORT = 80_000
"""How often pydantic may read objects for one call, again for every alternative, before that must be in proportion to their number.

Only unions that hold themselves in two alternatives or more get there, at 13 levels; with `Field(discriminator=...)` they never do."""
_MOMENTS = ("date-time", "time", "duration")
"""Formats that pydantic names for output also where the value has no offset, a sign or fractions; see `json_schema`."""


class PydanticArguments(TypedArguments):
    """Arguments by pydantic, in strict mode: JSON types are not converted into each other.

    Args:
        signature: The function's.
        strict: Whether unknown arguments are refused; ignored otherwise.

    Raises:
        Unsupported: pydantic refuses an annotation, too.
        ImportError: pydantic is not installed.
    """

    def __init__(self, signature: Signature, *, strict: bool) -> None:
        from pydantic import ValidationError

        self.refusals = (ValidationError,)
        # names of fields are ours: pydantic refuses some that Python takes, like `_x`, and warns of others, like `json`
        fields = {f"p{at}": parameter for at, parameter in enumerate(signature.parameters)}
        self._names = {field: parameter.name for field, parameter in fields.items()}
        try:
            model, schema = self._compile(fields, strict=strict)
        except Unsupported:
            for field, parameter in fields.items():
                with _refusals(parameter.name):
                    self._compile({field: parameter}, strict=strict)
            raise
        for node, parameter in zip(schema["properties"].values(), signature.parameters, strict=True):
            if parameter.description:
                node.setdefault("description", parameter.description)
        super().__init__(schema)
        self._label = signature.label
        self._ways = max((_ways_back(node, schema) for _, node in walk(schema) if len(node.get("anyOf", ())) > 1), default=0)
        # said per call, strictness holds in models inside too; where a field says otherwise, the field wins
        self._validate = functools.partial(model.__pydantic_validator__.validate_json, strict=True)

    def bind(self, raw: bytes | msgspec.Raw | None) -> dict[str, Any]:
        """See `Arguments.bind`."""
        if self._ways > 1:
            self._check_effort(bytes(raw or b"{}"))
        try:
            return self.convert(bytes(raw or b"{}"))
        except self.refusals:
            return self.explain(raw or b"{}")

    def _check_effort(self, raw: bytes) -> None:
        """Refuse what would hold pydantic for long: it reads a value anew for every alternative of every union around it."""
        effort, objects = _effort(raw, self._ways)
        if effort > max(MAX_EFFORT, 8 * objects):
            if self._label:  # once: the way out is the author's
                _log.warning("%s: arguments that would take long were refused; its union needs Field(discriminator=...)", self._label)
                self._label = ""
            raise ArgumentFaults([((), "nested too deeply for the alternatives that they are made of")])
        if effort > MAX_EFFORT // 50:  # what doesn't fit takes it longest, and the schema knows at once
            instance = parse_plain(raw)
            findings, complete = self.judge.findings(instance, big=objects > MAX_LISTED)
            if findings:
                raise ArgumentFaults(findings, complete=complete)

    def convert(self, data: bytes) -> dict[str, Any]:
        """See `TypedArguments.convert`."""
        values = self._validate(data).__dict__
        return {name: values[field] for field, name in self._names.items()}

    def findings(self, instance: Any, known: list[Finding]) -> Iterator[Finding]:
        """See `TypedArguments.findings`: what validators and types say that JSON Schema can't."""
        try:
            self._validate(msgspec.json.encode(instance))
        except self.refusals as refusal:
            yield from _findings(refusal, instance, known)

    def _compile(self, fields: dict[str, Parameter], *, strict: bool) -> tuple[Any, dict[str, Any]]:
        from pydantic import create_model

        structs = Generator(output=False)
        definitions: dict[str, Any] = {field: _field(parameter, structs) for field, parameter in fields.items()}
        with _refusals(None):
            model = create_model("Arguments", __base__=_root(extra="forbid" if strict else "ignore"), **definitions)
            schema = _document(functools.partial(model.model_json_schema, schema_generator=_generator()), structs)
        if strict:
            schema["additionalProperties"] = False
        order = ("type", "properties", "required", "additionalProperties", "$defs")
        return model, {key: schema[key] for key in order if key in schema}


class PydanticResult:
    """A result's schema in serialization mode (A21), and its encoder.

    Args:
        annotation: What the function returns.

    Attributes:
        schema: What `encode` gives, as JSON Schema.
        nullable: Whether null may stand in it, which is what pydantic makes of NaN.

    Raises:
        Unsupported: pydantic refuses the annotation, too.
        ImportError: pydantic is not installed.
    """

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter, ValidationError
        from pydantic_core import PydanticSerializationError

        structs = Generator(output=True)
        with _refusals(None):
            adapter: Any = TypeAdapter(rebuild(annotation, functools.partial(_bridged, structs=structs)))
            dump = functools.partial(adapter.json_schema, mode="serialization", schema_generator=_generator())
            schema = _document(dump, structs)
        for _, node in walk(schema):
            if node.get("format") in _MOMENTS:
                del node["format"]
        self.schema = inline_root(schema)
        self.nullable = True
        self._validate = adapter.validate_python
        self._dump = functools.partial(adapter.dump_json, by_alias=True, warnings="error")
        self._misfits = (ValidationError, PydanticSerializationError)

    def encode(self, value: Any) -> bytes:
        """Encode a value; what is no instance of a model yet is validated (TL-08).

        Raises:
            Misfit: It doesn't fit.
            Exception: It can't be encoded; of pydantic's choice.
        """
        try:
            data: bytes = self._dump(self._validate(value))
        except self._misfits as refusal:
            findings = list(_findings(refusal, value) if hasattr(refusal, "errors") else _warnings(str(refusal)))
            if not findings:
                raise
            raise Misfit(findings) from refusal
        if b"NaN" in data or b"Infinity" in data:  # a model may choose to write these, which are no JSON
            msgspec.json.decode(data)
        return data


@contextmanager
def _refusals(culprit: str | None) -> Iterator[None]:
    """Turn pydantic's refusals of a type into `Unsupported`."""
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    try:
        yield
    except Unsupported as error:
        raise Unsupported(culprit, error.reason) from None
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError) as error:
        # without pydantic's advice, which is about settings that aren't the author's here
        raise Unsupported(culprit, str(error).split("\n", 1)[0].split(". Set ", 1)[0]) from None


def _root(*, extra: str) -> Any:
    """The base of argument lists."""
    from pydantic import BaseModel, ConfigDict

    class Root(BaseModel):
        # dataclasses and TypedDicts inside take what is said here for them, too: only what is right for them stands here
        model_config = ConfigDict(allow_inf_nan=False, protected_namespaces=(), ser_json_bytes="base64", val_json_bytes="base64")

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            schema = handler(source)
            schema["schema"]["extra_behavior"] = extra
            return schema

    return Root


def _field(parameter: Parameter, structs: Generator) -> tuple[Any, Any]:
    """Type and default of a field. Its name for clients is the parameter's, unless the author says otherwise."""
    from pydantic import Field

    kind = rebuild(parameter.annotation, functools.partial(_bridged, structs=structs))
    metadata = getattr(kind, "__metadata__", ())
    named: Any = Annotated[(kind.__origin__ if metadata else kind, Field(validation_alias=parameter.name), *metadata)]
    return named, Field() if parameter.default is EMPTY else parameter.default


def _bridged(part: Any, *, structs: Generator) -> Any:
    """Make known to pydantic what only msgspec knows: Structs and `Meta`."""
    cls = get_origin(part) or part
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
        return Annotated[part, _StructBridge(structs)]
    metadata = getattr(part, "__metadata__", ())
    if any(isinstance(item, msgspec.Meta) for item in metadata):
        inner = rebuild(part.__origin__, functools.partial(_bridged, structs=structs))
        return Annotated[(inner, *map(_translated, metadata))]
    return part


def _translated(metadata: Any) -> Any:
    """Say with pydantic's `Field` what `msgspec.Meta` says."""
    if not isinstance(metadata, msgspec.Meta):
        return metadata
    from pydantic import Field

    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "title", "description", "examples")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(metadata, name)) is not None}
    return Field(**given, json_schema_extra=metadata.extra_json_schema)


def _convert(value: Any, *, kind: Any, fill: Filler | None) -> Any:
    converted = msgspec.convert(value, kind)
    if fill:
        fill([converted])
    return converted


class _StructBridge:
    """Lets msgspec validate and encode a Struct inside a pydantic type."""

    def __init__(self, structs: Generator) -> None:
        self._structs = structs

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            functools.partial(_convert, kind=source, fill=compile_filler([source])),
            metadata={"struct": source},
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {_STRUCT: self._structs.read(schema["metadata"]["struct"])["$ref"]}


def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Leaves out the titles that pydantic makes from names."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 pydantic's protocol

        def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 pydantic's protocol
            return False

    return Untitled


def _document(dump: Callable[[], dict[str, Any]], structs: Generator) -> dict[str, Any]:
    """Make the schema, put the Structs' definitions in, and drop what says nothing."""
    schema = dump()
    defs: dict[str, Any] = schema.pop("$defs", {})
    if clash := defs.keys() & structs.defs.keys():
        raise Unsupported(None, f"a model and a Struct are both called {clash.pop()}")
    defs.update(structs.defs)
    schema.pop("title", None)
    for name, inner in defs.items():
        if inner.get("title") == name:
            del inner["title"]
        if "description" in inner:
            describe_fields(inner, inner["description"], {})
    if defs:
        schema["$defs"] = defs
    for _, node in walk(schema):
        node.pop("discriminator", None)  # OpenAPI's, and its mapping repeats what the tags say
        if node.get("format") == "base64url":
            node["contentEncoding"] = node.pop("format").removesuffix("url")
        if _STRUCT in node:
            node["$ref"] = node.pop(_STRUCT)
    _drop_misfits(schema, defs)
    return schema


def _drop_misfits(schema: dict[str, Any], defs: dict[str, Any]) -> None:
    """Advertise no default that the schema refuses, as of a sentinel outside of what is asked of clients."""
    for _, node in walk(schema):
        if "default" in node and Judge({**node, "$defs": defs}).findings(node["default"])[0]:
            del node["default"]


def _findings(refusal: Any, instance: Any, known: list[Finding] | None = None) -> Iterator[Finding]:
    """What a `ValidationError` says, unless it is endless.

    Of an argument that its schema has nothing against, what a schema could say is about alternatives that weren't meant.
    """
    if refusal.error_count() > MAX_FINDINGS:
        yield (), f"has {refusal.error_count()} faults, too many to list"
        return
    errors = refusal.errors(include_url=False, include_input=False)
    telling = {error["loc"][:1] for error in errors if not _SAYABLE.search(error["type"])}
    for error in errors:
        place = error["loc"][:1]
        if known is None or place not in telling or covered(place, known) or not _SAYABLE.search(error["type"]):
            yield _place(error["loc"], instance), _expectation(error)


def _ways_back(union: dict[str, Any], root: dict[str, Any]) -> int:
    """How many of a union's alternatives hold the union."""
    return sum(1 for branch in union["anyOf"] if _reaches(branch, union, root))


def _reaches(schema: dict[str, Any], goal: dict[str, Any], root: dict[str, Any]) -> bool:
    waiting, seen = [schema], set[int]()
    while waiting:
        node = waiting.pop()
        if node is goal:
            return True
        inner = [part for _, part in children(node)] + ([resolve(root, node["$ref"])] if "$ref" in node else [])
        waiting += [part for part in inner if id(part) not in seen]
        seen.update(map(id, inner))
    return False


def _effort(raw: bytes, ways: int) -> tuple[int, int]:
    """How often objects are read in all, when each is read for every way through the objects around it; and how many there are."""
    effort, objects, weight = 0, 0, 1
    for byte in _STRING.sub(b"", raw).translate(None, _NO_BRACES):
        if byte == ord("{"):
            effort += weight
            objects += 1
            weight *= ways
            if effort > MAX_EFFORT * len(raw):  # whatever follows
                break
        else:
            weight = weight // ways or 1
    return effort, objects


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACES = bytes(set(range(256)) - set(b"{}"))
_SAYABLE = re.compile(
    r"_type$|^(missing|extra_forbidden|unexpected_keyword|literal_error|enum|const|union_tag|none_required|string_|too_|greater_|less_)"
)
"""Errors of pydantic that say what JSON Schema can say, too."""
_WARNING = re.compile(r"Expected `([^`]+)`(?:[^\n]*\[field_name='(\w+)')?")


def _warnings(text: str) -> Iterator[Finding]:
    """What a `PydanticSerializationError` says of values that don't have their type; it knows the field, not the way there."""
    for expected, field in _WARNING.findall(text):
        yield (field,) if field else (), f"must be {expected}"


def _place(location: tuple[str | int, ...], instance: Any) -> tuple[str | int, ...]:
    """Where an error is: pydantic's location without the names of types that it puts in for alternatives."""
    path: list[str | int] = []
    for at, step in enumerate(location):
        try:
            instance = instance[step]
        except (KeyError, IndexError, TypeError):
            if at < len(location) - 1 or not isinstance(instance, dict):  # else it is a missing one
                continue
        path.append(step)
    return tuple(path)


def _expectation(error: dict[str, Any]) -> str:
    """Say it in our words, and without the value: the message on an unknown tag repeats it."""
    kind, text = error["type"], str(error["msg"])
    if kind == "missing":
        return "required, missing"
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "union_tag_invalid":
        return f"must have a tag of: {error['ctx']['expected_tags']}"
    for prefix, ours in (("Input should be ", "must be "), ("Value error, ", ""), ("Assertion failed, ", "")):
        if text.startswith(prefix):
            return ours + text[len(prefix) :]
    return f"{text[:1].lower()}{text[1:]}"
