"""Log lines carry ids and neither content nor secrets, whoever writes them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from harness.errors import HarnessFault, StorageError
from harness.runtime.hooks import BeforeDrive
from tests.app.kit import running_api, settings_for
from tests.postgres import Database
from tests.workers.kit import Fleet
from tests.workers.test_poison import hook
from workers.logs import IDS, JsonLines, TextLines, about, describe, note, only_about

SECRET_TEXT = "the sentinel of these tests"


class Lines:
    """What was logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    handler = logging.StreamHandler(made.stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield made
    root.removeHandler(handler)
    root.setLevel(before)


def logger() -> logging.Logger:
    return logging.getLogger("workers.test")


def test_ids_are_on_the_lines_that_are_about_them(lines: Lines) -> None:
    logger().info("before")
    with about(request="r", tenant="t"):
        with about(session="s", lane=None):
            logger().info("in %s", "it")
        note(operation="o")
        logger().info("noted")
        only_about(session="other")
        logger().info("alone")
    logger().info("after")
    seen = [{name: line[name] for name in IDS if name in line} for line in lines.documents]
    assert seen == [
        {},
        {"request": "r", "tenant": "t", "session": "s"},
        {"request": "r", "tenant": "t", "operation": "o"},
        {"session": "other"},
        {},
    ]
    assert lines.documents[1]["message"] == "in it"
    assert lines.documents[1]["level"] == "INFO"
    assert lines.documents[1]["time"].endswith("Z")


def test_an_exception_shows_where_and_not_what(lines: Lines) -> None:
    try:
        try:
            raise ValueError(SECRET_TEXT)
        except ValueError as error:
            raise RuntimeError(SECRET_TEXT) from error
    except RuntimeError as error:
        logger().exception("it failed")
        logger().warning("it failed: %s", error)
        logging.getLogger("asyncio").error("never retrieved\nfuture: %r", error)
    assert SECRET_TEXT not in lines.text
    first, second, third = lines.documents
    assert first["error"] == "RuntimeError: ValueError"
    assert sum("test_logs.py" in frame for frame in first["stack"]) == 2
    assert second["message"] == "it failed: RuntimeError: ValueError"
    assert third["message"] == "never retrieved"


def test_what_we_and_the_database_say_is_shown() -> None:
    refused = psycopg.errors.NotNullViolation(f'null in "x"\nDETAIL:  Failing row: {SECRET_TEXT}')
    assert describe(refused) == 'NotNullViolation: null in "x"'
    assert describe(StorageError("no connection")) == "StorageError: no connection"
    fault = HarnessFault(f"harness fault: {SECRET_TEXT}", ValueError(SECRET_TEXT))
    assert describe(fault) == "HarnessFault: ValueError"
    assert describe(StorageError("")) == "StorageError"


@pytest.mark.parametrize(
    "said",
    [
        "key lw_0123abcd_s3cr3ts3cr3t refused",
        "cannot reach postgresql://app:s3cr3ts3cr3t@db:5432/x",
        "connecting with password=s3cr3ts3cr3t host=db",
        "header Authorization: Bearer s3cr3ts3cr3t",
    ],
)
def test_secrets_are_struck_out(lines: Lines, said: str) -> None:
    logger().warning("%s", said)
    assert "s3cr3t" not in lines.text
    assert "[secret]" in lines.text


def test_text_for_a_terminal_has_the_same_on_a_line() -> None:
    record = logging.makeLogRecord(
        {"name": "workers.x", "levelname": "INFO", "msg": "hello %s", "args": ("you",)}
    )
    with about(session="s", operation="o"):
        line = TextLines().format(record)
    assert line.endswith("INFO workers.x: hello you [session=s operation=o]")


async def test_a_pass_that_fails_says_where_and_tells_nothing(fleet: Fleet, lines: Lines) -> None:
    worker = await fleet.worker()
    left = 1

    async def failing(_event: BeforeDrive, _context: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ValueError(SECRET_TEXT)

    hook(worker, failing)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, f"echo: {SECRET_TEXT}")
    assert await fleet.settled(operation) == ["completed"]
    [failed] = [line for line in lines.documents if "a pass of" in line["message"]]
    assert {name: failed[name] for name in IDS if name in failed} == {
        "tenant": fleet.tenant,
        "session": session,
        "lane": "main",
        "operation": operation,
    }
    assert SECRET_TEXT not in lines.text


async def test_a_request_that_fails_is_found_by_its_id(
    fresh_database: Database, lines: Lines
) -> None:
    async with (
        running_api(settings_for(fresh_database)) as api,
        httpx.AsyncClient(base_url=api.url) as client,
    ):
        tenant = await api.services.catalog.create_tenant("t")
        key = (await api.services.catalog.create_key(tenant.id, "k", ("sessions:write",))).plain
        client.headers["Authorization"] = f"Bearer {key}"

        async def broken(*_arguments: object) -> None:
            raise ValueError(SECRET_TEXT)

        api.services.sessions.create_on = broken  # pyright: ignore[reportAttributeAccessIssue]
        answer = await client.post("/v1/sessions", json={"name": SECRET_TEXT})
        assert answer.status_code == 500
        request_id = answer.headers["x-request-id"]
    ours = [line for line in lines.documents if line.get("request") == request_id]
    assert any(line.get("tenant") == tenant.id for line in ours)
    assert SECRET_TEXT not in lines.text
    assert key not in lines.text
