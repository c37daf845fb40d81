"""The reference page is what the docstrings say, and every public name says something."""

from __future__ import annotations

import importlib.util
import inspect
import re
from types import FunctionType, ModuleType

import harness
from tests.docs.examples import DOCS


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date() -> None:
    # `make docs` writes it.
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == _maker().reference()


def test_every_public_name_is_documented_and_listed() -> None:
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (.*)$", page, re.MULTILINE)) == sorted(harness.__all__)
    for name in harness.__all__:
        found = getattr(harness, name)
        if inspect.isclass(found) or isinstance(found, FunctionType):
            assert vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__, name
