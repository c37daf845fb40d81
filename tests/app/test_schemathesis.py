"""The API against its own document, with requests that nobody thought of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.http.app import create_app
from tests.app.kit import SECRET
from tests.app.test_processes import laneway, new_key
from tests.postgres import Database
from workers.settings import Settings

# A session's file is sent as the text that it is.
schemathesis.serializer.alias("application/jsonl", "text/plain")

pytestmark = pytest.mark.timeout(300)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def served(database: Database) -> Iterator[tuple[str, str, str]]:
    """URL, key and a session of an API in a process of its own: the tests' requests block this one."""
    environment = {
        "LANEWAY_DATABASE_URL": database.app_dsn,
        "LANEWAY_CLUSTER_SECRET": SECRET,
        "LANEWAY_DRAIN_SECONDS": "1",
    }
    key = new_key(database, "schemathesis")
    with asyncio.Runner() as runner:
        running = laneway("api", "--port", "0", environment=environment)
        _, ready = runner.run(running.__aenter__())
        made = httpx.post(
            f"{ready['url']}/v1/sessions", json={}, headers={"Authorization": f"Bearer {key}"}
        )
        yield ready["url"], key, made.json()["id"]
        runner.run(running.__aexit__(None, None, None))


def operations() -> list[Any]:
    """What the document describes, without the streams: they end when their client leaves."""
    settings_ = Settings(
        database_url="postgresql://nowhere/x",
        cluster_secret=SECRET,  # pyright: ignore[reportArgumentType]  # made a secret by pydantic
    )
    schema = schemathesis.openapi.from_dict(create_app(settings_).openapi())
    # Any: the library's result type has no common face for both outcomes.
    found: Any = schema.exclude(path_regex="events$").get_all_operations()
    described = [each.ok() for each in found]
    return [pytest.param(each, id=each.definition.raw["operationId"]) for each in described]


@pytest.mark.parametrize("operation", operations())
def test_no_request_breaks_it(operation: Any, served: tuple[str, str, str]):
    url, key, session = served
    headers = {"Authorization": f"Bearer {key}"}

    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        # Ids that nobody thought of are not found; what lies behind them is to be met, too.
        if "session_id" in case.path_parameters and case.method != "DELETE":
            case.path_parameters |= {"session_id": session}
            if "lane" in case.path_parameters:
                case.path_parameters |= {"lane": "main"}
        case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=40)

    check()
