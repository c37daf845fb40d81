"""The OpenAPI document: complete, valid in itself, and its examples accepted by what it describes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.http.app import create_app
from app.http.problems import REJECTIONS, problem_type
from harness import errors
from tests.app.contract import Contract
from workers import commands
from workers.settings import Settings


@pytest.fixture(scope="module")
def contract() -> Contract:
    settings = Settings(
        database_url="postgresql://nowhere/x",
        cluster_secret="only to make the document",  # pyright: ignore[reportArgumentType]  # made a secret by pydantic
    )
    return Contract(create_app(settings))


def operations(contract: Contract) -> Iterator[dict[str, Any]]:
    for path in contract.document["paths"].values():
        yield from path.values()


def references(value: object) -> Iterator[str]:
    match value:
        case {"$ref": str(name)}:
            yield name
        case dict():
            for item in value.values():
                yield from references(item)
        case list():
            for item in value:
                yield from references(item)
        case _:
            return


def test_every_reference_leads_to_a_schema_and_every_schema_is_used(contract: Contract):
    found = {name.removeprefix("#/components/schemas/") for name in references(contract.document)}
    assert found == set(contract.document["components"]["schemas"])


def test_every_operation_is_named_described_and_guarded(contract: Contract):
    names = [operation["operationId"] for operation in operations(contract)]
    assert len(set(names)) == len(names)
    for operation in operations(contract):
        assert operation["description"]
        public = operation["tags"] == ["health"]
        assert ("security" not in operation) == public
        assert ("401" in operation["responses"]) != public
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                assert "$ref" in content["schema"]


def test_every_body_has_examples_that_fit_it(contract: Contract):
    seen = 0
    for operation in operations(contract):
        if "requestBody" not in operation:
            continue
        (body,) = operation["requestBody"]["content"].values()
        assert body["examples"], operation["operationId"]
        for example in body["examples"].values():
            contract.validate(example["value"], body["schema"])
            seen += 1
    assert seen > 10


def test_unions_of_tagged_types_have_discriminators(contract: Contract):
    schemas = contract.document["components"]["schemas"]
    for name in ("OperationRequest", "Entry", "StreamedEvent", "AppendEntry"):
        shape = schemas[name]
        assert shape["discriminator"]["propertyName"] in ("kind", "type")
        assert len(shape["discriminator"]["mapping"]) == len(shape["anyOf"])


def test_clients_never_see_the_growing_message(contract: Contract):
    schemas = contract.document["components"]["schemas"]
    assert "MessageUpdate" not in schemas
    assert "message" not in schemas["MessageDelta"]["properties"]


def test_the_document_is_plain_json(contract: Contract):
    assert json.loads(json.dumps(contract.document)) == contract.document


def test_every_expected_rejection_has_a_status():
    known = {
        kind.__name__
        for module in (errors, commands)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.TaggedError)
        and kind is not errors.TaggedError
    }
    assert known == set(REJECTIONS)


@pytest.mark.parametrize(
    ("code", "urn"),
    [("LaneBusy", "urn:laneway:lane-busy"), ("UnknownTarget", "urn:laneway:unknown-target")],
)
def test_types_are_urns(code: str, urn: str):
    assert problem_type(code) == urn
