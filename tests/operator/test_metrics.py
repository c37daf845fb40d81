"""What a process tells Prometheus is what happened; tenants are told nothing."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
import yaml

from harness.usage import Usage, UsageCost
from tests.app.kit import running_api, settings_for
from tests.docs.examples import DOCS
from tests.operator.kit import command, scrape
from tests.postgres import Database
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.test_wakes import FAILING
from tests.workers.tools import GATES
from workers.jobs import sweep_now
from workers.metrics import Metrics
from workers.watching import EndItem, EventItem, Feed

_NAME = re.compile(r"\b(?:laneway|process)_[a-z0-9_]+\b")


async def test_a_run_is_counted_where_it_happens(fleet: Fleet) -> None:
    worker = await fleet.worker()
    before = await scrape(worker)
    operation = await fleet.prompt(worker, await fleet.session(), "echo: hello")
    assert await fleet.settled(operation) == ["completed"]
    await eventually(lambda: not worker.registry.busy)
    seen = await scrape(worker)
    assert before("operations_accepted_total", kind="run") == 0
    assert seen("operations_accepted_total", kind="run") == 1
    assert seen("operations_finished_total", kind="run", outcome="completed") == 1
    assert seen("operations_finished_total", kind="run", outcome="failed") == 0
    rows = await fleet.sql("SELECT usage FROM laneway.sessions")
    used = json.loads(rows[0][0])
    assert used["output"] > 0
    assert seen("tokens_total", type="input") == used["input"]
    assert seen("tokens_total", type="output") == used["output"]
    assert seen("cost_dollars_total") == pytest.approx(used["cost"]["total"])
    assert seen("claim_seconds_count") == 1
    assert seen("commit_seconds_count", durability="durable") > 2
    assert seen("commit_seconds_count", durability="relaxed") > 0
    assert (seen("drives"), seen("sessions_open"), seen("ready")) == (0, 0, 1)
    assert seen("drive_capacity") == 64


async def test_work_is_told_by_its_state(fleet: Fleet) -> None:
    api = await fleet.api()
    made = await command(fleet.database, "tenant", "create", "g", "--class", "gold", "--json")
    golden = made.documents[0]["id"]
    driven = await fleet.session()
    other = await fleet.new_tenant()
    worker = await fleet.host("worker", jobs=False)
    await fleet.prompt(worker, driven, gated("g"))
    await GATES["g"].entered.wait()
    await fleet.prompt_of(golden, api, await fleet.session_of(golden), "echo: x")
    await fleet.prompt_of(other, api, await fleet.session_of(other), "echo: x")
    seen = await scrape(api)
    assert seen("fleet_known") == 1
    assert seen("open_operations", state="driven") == 1
    assert seen("open_operations", state="waiting") == 2
    assert seen("open_operations", state="scheduled") == 0
    assert seen("queue_depth", tenant_class="gold") == 1
    assert seen("queue_depth", tenant_class="default") == 1
    assert seen("oldest_wait_seconds") > 0
    assert seen("hosts", role="worker", state="live") == 1
    assert seen("hosts", role="api", state="live") == 1
    assert (await scrape(worker))("drives") == 1
    GATES["g"].release.set()


async def test_a_scrape_comes_back_while_the_database_is_away(fleet: Fleet) -> None:
    api = await fleet.api()
    await api.pool.close()
    seen = await scrape(api)
    assert seen("fleet_known") == 0
    assert seen("ready") == 1


async def test_a_death_and_what_it_left_are_counted(fleet: Fleet) -> None:
    dying = await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(dying, session, gated("g", "gated_safe"))
    await GATES["g"].entered.wait()
    other = await fleet.worker()
    await fleet.kill(dying)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    seen = await scrape(other)
    assert seen("hosts_died_total") == 1
    assert seen("failovers_total") == 1
    assert seen("hosts_cut_off_total") == 0


async def test_a_wait_that_ends_is_measured(fleet: Fleet) -> None:
    # Long enough that no wait is over before the pass that began it: that one would just go on.
    worker = await fleet.worker(retry_base_ms=300, retry_max=2)
    operation = await fleet.prompt(worker, await fleet.session(), FAILING)
    assert await fleet.settled(operation) == ["failed"]
    assert (await scrape(worker))("wake_lateness_seconds_count") == 2


async def test_jobs_and_sweeps_are_counted(fleet: Fleet) -> None:
    api = await fleet.api()
    # Accepted while there is no worker to take it.
    operation = await fleet.prompt(api, await fleet.session(), "echo: x")
    worker = await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]
    dispatches = [(await scrape(host))("dispatch_lateness_seconds_count") for host in (api, worker)]
    assert sum(dispatches) >= 1
    assert await sweep_now(api) == {}
    stray = api.environment.ids.next()
    await fleet.sql(
        "INSERT INTO laneway.open_operations"
        " (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)"
        " SELECT %s, tenant_id, id, 'main', 'run', 0, 9000000000000 FROM laneway.sessions LIMIT 1",
        stray,
    )
    assert await sweep_now(api) == {"stray": 1}
    seen = await scrape(api)
    assert seen("sweeps_total", found="nothing") == 1
    assert seen("sweeps_total", found="something") == 1
    assert seen("sweep_repairs_total", difference="stray") == 1


def test_a_watcher_that_does_not_read_is_counted_once() -> None:
    metrics = Metrics()
    feed = Feed(2, 1_000, metrics.watcher_dropped)
    for _ in range(5):
        feed.push(EventItem("e", b"{}"))
    assert list(feed._items) == [EndItem("slow_reader")]
    assert metrics.registry.get_sample_value("laneway_watchers_dropped_total") == 1


def test_poison_and_odd_reports_are_counted_soundly() -> None:
    metrics = Metrics()
    metrics.ended("run", "failed", "crash_loop")
    metrics.ended("run", "failed", "provider_error")
    metrics.used(Usage(input=-5, output=3, cost=UsageCost(total=-1.0)))
    read = metrics.registry.get_sample_value
    assert read("laneway_operations_poisoned_total") == 1
    assert read("laneway_operations_finished_total", {"kind": "run", "outcome": "failed"}) == 2
    assert read("laneway_tokens_total", {"type": "input"}) == 0
    assert read("laneway_tokens_total", {"type": "output"}) == 3
    assert read("laneway_cost_dollars_total") == 0


async def test_who_invents_classes_makes_no_series_without_end(fleet: Fleet) -> None:
    api = await fleet.api()
    await fleet.sql(
        "INSERT INTO laneway.tenants (id, name, created_at, limits)"
        " SELECT gen_random_uuid(), n::text, 0, jsonb_build_object('class', 'c' || n)"
        " FROM generate_series(1, 60) AS n"
    )
    await fleet.sql(
        "INSERT INTO laneway.open_operations"
        " (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)"
        " SELECT gen_random_uuid(), id, gen_random_uuid(), 'main', 'run', 0, 0 FROM laneway.tenants"
    )
    seen = await scrape(api)
    depths = {labels: v for (name, labels), v in seen.samples.items() if "queue_depth" in name}
    assert len(depths) == 21
    assert sum(depths.values()) == 61
    assert seen("queue_depth", tenant_class="other") == 41


async def test_the_public_port_tells_only_who_has_the_token(fresh_database: Database) -> None:
    token = "scrapers know this"
    async with (
        running_api(settings_for(fresh_database)) as closed,
        running_api(settings_for(fresh_database, metrics_token=token)) as opened,
        httpx.AsyncClient() as client,
    ):
        services = opened.services
        tenant = await services.catalog.create_tenant("t")
        key = (await services.catalog.create_key(tenant.id, "k", ("admin",))).plain

        async def status(url: str, presented: str | None) -> int:
            headers = {} if presented is None else {"Authorization": f"Bearer {presented}"}
            return (await client.get(f"{url}/metrics", headers=headers)).status_code

        for presented in (None, key, token):
            assert await status(closed.url, presented) == 404
        for presented in (None, key, token[:-1], token + "x"):
            assert await status(opened.url, presented) == 401
        assert await status(opened.url, token) == 200


async def test_the_internal_port_tells_numbers_and_nothing_else(fleet: Fleet) -> None:
    worker = await fleet.worker()
    base = f"http://127.0.0.1:{worker._server.port}"
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{base}/metrics")).status_code == 200
        assert (await client.post(f"{base}/metrics")).status_code == 403
        assert (await client.get(f"{base}/internal/execute")).status_code == 403


async def test_event_streams_are_counted_while_they_last(fresh_database: Database) -> None:
    async with (
        running_api(settings_for(fresh_database)) as api,
        httpx.AsyncClient(base_url=api.url) as client,
    ):
        tenant = await api.services.catalog.create_tenant("t")
        scopes = ("sessions:read", "sessions:write")
        key = (await api.services.catalog.create_key(tenant.id, "k", scopes)).plain
        client.headers["Authorization"] = f"Bearer {key}"
        session = (await client.post("/v1/sessions", json={})).json()["id"]

        async def streams() -> float:
            return (await scrape(api.services.host))("event_streams")

        assert await streams() == 0
        async with client.stream("GET", f"/v1/sessions/{session}/events") as stream:
            await anext(stream.aiter_lines())
            assert await streams() == 1

        async def none_left() -> bool:
            return await streams() == 0

        await eventually(none_left)


def rules() -> list[dict[str, str]]:
    document = yaml.safe_load((DOCS / "operations" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    dashboard = json.loads((DOCS / "operations" / "grafana-dashboard.json").read_text())
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return drawn + [rule["expr"] for rule in rules()]


async def test_what_dashboard_and_alerts_name_is_told(fleet: Fleet) -> None:
    api, worker = await fleet.api(), await fleet.worker()
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert len(named) > 20
    for host in (api, worker):
        assert named - (await scrape(host)).names == set()
    # And the other way round: nothing is told that nobody looks at.
    told = {name for name in (await scrape(worker)).names if name.startswith("laneway_")}
    parts = re.compile(r"_(bucket|count|sum|created)$")
    assert {parts.sub("", name) for name in told} - {parts.sub("", name) for name in named} - {
        re.sub("_total$", "", name) for name in named
    } == set()


def test_each_alert_says_what_it_means() -> None:
    page = (DOCS / "operations.md").read_text()
    alerts = [rule["alert"] for rule in rules()]
    assert len(set(alerts)) == len(alerts)
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == alerts


async def test_two_hosts_in_one_process_count_apart(fleet: Fleet) -> None:
    one, two = await fleet.worker(), await fleet.host("worker", jobs=False)
    operation = await fleet.prompt(one, await fleet.session(), "echo: x")
    assert await fleet.settled(operation) == ["completed"]
    first, second = await asyncio.gather(scrape(one), scrape(two))
    assert first("operations_accepted_total", kind="run") == 1
    assert second("operations_accepted_total", kind="run") == 0
