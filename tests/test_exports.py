"""The public surface: what `callboard` exports, exactly, and that every exported name is documented where it is defined."""

import ast
import importlib
import inspect
import typing

import pytest
from source_tree import GENERATED, modules, tree

import callboard

PUBLIC = [
    "CacheHint",
    "CallboardError",
    "Caller",
    "Client",
    "Context",
    "Depends",
    "Fail",
    "Handler",
    "Hello",
    "Layer",
    "NeedInput",
    "NotFound",
    "Outcome",
    "Reason",
    "RegistrationError",
    "Reply",
    "Request",
    "Server",
    "Service",
    "ToolError",
    "asgi",
    "audio",
    "dispatch",
    "embed",
    "image",
    "link",
    "run",
    "stdio",
    "text",
]
LIMIT = 30
WRITTEN = sorted(name for name, path in modules().items() if path != GENERATED)


def test_the_surface_is_pinned() -> None:
    assert sorted(callboard.__all__) == PUBLIC
    assert len(callboard.__all__) == len(set(callboard.__all__)) <= LIMIT


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = callboard.no_such_name


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(callboard, name)
    is_alias = typing.get_origin(value) is not None  # documented beside its definition, out of reach of help()
    assert is_alias or (inspect.getdoc(value) or "").strip(), f"callboard.{name} has no docstring"


@pytest.mark.parametrize("name", WRITTEN)
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert ast.get_docstring(tree(modules()[name])), f"{name} has no docstring"


@pytest.mark.parametrize("name", WRITTEN)
def test_a_module_exports_names_that_exist(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    missing = [each for each in exported if not hasattr(module, each)]
    assert not missing, f"{name}.__all__ names {missing}, which are not there"


@pytest.mark.parametrize("name", WRITTEN)
def test_exported_functions_and_classes_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    bare = [
        each
        for each in getattr(module, "__all__", [])
        if inspect.isroutine(value := getattr(module, each)) or inspect.isclass(value)
        if not (value.__doc__ or "").strip()
    ]
    assert not bare, f"{name}: no docstring on {bare}"
