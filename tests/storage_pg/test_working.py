"""What an owner knows of its operations' own values is what the database would say."""

from __future__ import annotations

from typing import Any

from harness.context import BACKGROUND
from harness.operation import values
from harness.storage.address import Value
from harness.storage.protocol import StoredValue
from harness.storage.writes import delete_value, set_value
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit
from tests.storage_pg.operations import Op

Shown = list[tuple[str, int, Any]]


def shown(found: list[StoredValue[Any]]) -> Shown:
    return [(stored.address.key, stored.seq, stored.value) for stored in found]


async def both(kit: Kit, session: str, storage: PostgresStorage, prefix: Value[Any]) -> Shown:
    """What the owner says, which must be what is stored."""
    reader = kit.sessions.reader(kit.tenant, session)
    owner = shown(await storage.scan_values(prefix, BACKGROUND))
    assert owner == shown(await reader.scan_values(prefix, BACKGROUND))
    return owner


async def test_an_operation_accepted_here_is_known_to_the_end(kit: Kit) -> None:
    owned = await kit.open_new()
    storage, session = owned.storage, owned.claimed.id
    operation = Op(kit.environment.ids.next())
    arguments = values.operation_tool_args_prefix(operation.id)
    # As a compaction does: what it begins with comes before it in the same transaction.
    preparation: Value[Any] = Value(Any, "pi.op.preparation", f"{operation.id}:task")
    await storage.commit([set_value(preparation, {"entries": []}), *operation.accept()], BACKGROUND)
    one: Value[Any] = values.operation_tool_args(operation.id, "turn", 0)
    two: Value[Any] = values.operation_tool_args(operation.id, "turn", 1)
    for address, args in ((two, {"b": [2]}), (one, {"a": 1}), (one, {"a": 2})):
        await storage.commit([set_value(address, args)], BACKGROUND)
    # What was written is what was committed, whatever becomes of the object that it was written from.
    nested: dict[str, Any] = {"b": [2]}
    await storage.commit([set_value(two, nested)], BACKGROUND)
    nested["b"].append(object())
    found = await both(kit, session, storage, arguments)
    assert [value for _, _, value in found] == [{"a": 2}, {"b": [2]}]
    found[0][2]["a"] = "a tool changed its arguments"
    assert (await both(kit, session, storage, arguments))[0][2] == {"a": 2}
    turn = values.operation_tool_args_prefix(operation.id, "turn")
    assert len(await both(kit, session, storage, turn)) == 2
    assert await both(kit, session, storage, values.operation_tool_memo_prefix(operation.id)) == []
    prepared: Value[Any] = Value(Any, "pi.op.preparation", f"{operation.id}:")
    assert len(await both(kit, session, storage, prepared)) == 1
    await storage.commit([delete_value(one), delete_value(preparation)], BACKGROUND)
    assert len(await both(kit, session, storage, arguments)) == 1
    assert await both(kit, session, storage, prepared) == []


async def test_what_was_there_before_the_claim_is_asked_for(kit: Kit) -> None:
    owned = await kit.open_new()
    session = owned.claimed.id
    operation = Op(kit.environment.ids.next())
    address: Value[Any] = values.operation_tool_args(operation.id, "turn", 0)
    await owned.storage.commit([*operation.accept(), set_value(address, {"a": 1})], BACKGROUND)
    await owned.storage.close(BACKGROUND)
    again = await kit.sessions.open(kit.tenant, session)
    prefix = values.operation_tool_args_prefix(operation.id)
    other: Value[Any] = values.operation_tool_args(operation.id, "turn", 1)
    await again.storage.commit([set_value(other, {"b": 1})], BACKGROUND)
    assert len(await both(kit, session, again.storage, prefix)) == 2
    # A prefix that is no single operation's.
    everything: Value[Any] = Value(Any, "pi.op.tool_args", "")
    assert len(await both(kit, session, again.storage, everything)) == 2


async def test_it_costs_no_query(kit: Kit) -> None:
    storage = await kit.new_storage()
    operation = Op(kit.environment.ids.next())
    await storage.commit(operation.accept(), BACKGROUND)
    await kit.pool.close()
    assert (
        await storage.scan_values(values.operation_tool_args_prefix(operation.id), BACKGROUND) == []
    )
