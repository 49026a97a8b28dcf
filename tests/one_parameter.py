"""Arguments of a function with one parameter `x`, and what is wrong with a value of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.server.arguments import Arguments
from callboard.server.schema import ArgumentFaults, compile_arguments
from callboard.server.signature import Signature, read


def taking(annotation: Any) -> Signature:
    """Signature of a function with one parameter `x`."""

    def f(x: Any) -> None: ...

    f.__annotations__["x"] = annotation
    return read(f)


def compiled(annotation: Any) -> Arguments:
    """Its compiled arguments."""
    return compile_arguments(taking(annotation))


def faults(arguments: Arguments, value: Any) -> list[tuple[str, str]]:
    """What is wrong with arguments, given as bytes or as a JSON value; something must be."""
    with pytest.raises(ArgumentFaults) as caught:
        arguments.bind(value if isinstance(value, bytes) else json.dumps(value).encode())
    return [(fault.path, fault.expected) for fault in caught.value.faults]
