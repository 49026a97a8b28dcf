"""What tests of forms share: the conformance suite's two forms, and what is said of a form or an answer that is refused.

from forms import refusals, refused
"""

from typing import Any

import pytest

from callboard.errors import RegistrationError
from callboard.server.form import Form, FormError, compile_form

DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
OPTIONS = ["option1", "option2", "option3"]
TITLES = [{"const": f"value{at}", "title": f"{word} option"} for at, word in enumerate(("First", "Second", "Third"), 1)]
ENUMS: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": TITLES},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option one", "Option two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLES}},
}
ENUM_ANSWER = {
    "untitledSingle": "option1",
    "titledSingle": "value1",
    "legacyEnum": "opt1",
    "untitledMulti": ["option1", "option2"],
    "titledMulti": ["value1", "value2"],
}
RAW_DEFAULTS = {"type": "object", "properties": DEFAULTS}


def refusals(form: Form, content: Any) -> dict[str, str]:
    """Place and expectation of every fault of an answer that a form refuses."""
    with pytest.raises(FormError) as caught:
        form.read(content)
    assert len({fault.path for fault in caught.value.faults}) == len(caught.value.faults), "each place once"
    return {fault.path: fault.expected for fault in caught.value.faults}


def refused(kind: Any) -> str:
    """The text with which a kind is refused as a form."""
    with pytest.raises(RegistrationError) as caught:
        compile_form(kind)
    return str(caught.value)
