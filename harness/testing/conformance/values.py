"""Conformance: replaceable values and append-only lists (§1.3-§1.5, §9.1 3)."""

from __future__ import annotations

from typing import Any

from harness.context import BACKGROUND
from harness.errors import InvalidArgument
from harness.storage.address import Value, list_of, value
from harness.storage.protocol import MAX_PAGE, ListRead
from harness.storage.writes import (
    Write,
    append_list,
    delete_list,
    delete_value,
    set_value,
)
from harness.testing.conformance.backend import StorageBackend, expect
from harness.testing.conformance.checking import Checked, checked_chain

# By code points, not by UTF-16 units, locale or escaped form; "%" and "_" are ordinary characters.
AWKWARD_KEYS = (
    "",
    "!",
    "%",
    "%a",
    "A",
    "B",
    "\\",
    "_",
    "_a",
    "a",
    "a%",
    "a%b",
    "a'b",
    'a"b',
    "aB",
    "a_",
    "a_b",
    "aa",
    "a\u0301",
    "axb",
    "b",
    "\u00e9",
    "\u00e9\u00e9",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0001f600",
    "\U0010ffff",
    "\U0010ffff\U0010ffff",
    "line\nbreak",
    "tab\there",
    "op:step:0",
    "op:step:1",
    "op:step:10",
    "op;",
)


class ValueConformance:
    """What a value and a list are, whatever they are kept in."""

    async def test_set_replace_delete_recreate(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        address = value(Any, "app.state", "k")
        stored_values: list[Any] = [1, {"a": [1, 2]}, "text", [], {}, True, False, 0, ""]
        for stored in stored_values:
            result = await checked.commit(set_value(address, stored))
            found = await checked.storage.get_value(address, BACKGROUND)
            assert found is not None
            assert (found.address, found.value, found.seq) == (address, stored, result.seqs[0])
            assert type(found.value) is type(stored)
        await checked.commit(delete_value(address))
        assert await checked.storage.get_value(address, BACKGROUND) is None
        await checked.commit(delete_value(address))
        await checked.commit(set_value(address, "again"))
        await checked.everything()

    async def test_null_is_not_absence(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        address: Value[str | None] = value(str | None, "app.leaf", "main")
        assert await checked.storage.get_value(address, BACKGROUND) is None
        await checked.commit(set_value(address, None))
        found = await checked.storage.get_value(address, BACKGROUND)
        assert found is not None
        assert found.value is None
        await checked.commit(append_list(list_of(Any, "app.nulls"), None))
        await checked.everything()
        await checked.commit(delete_value(address))
        assert await checked.storage.get_value(address, BACKGROUND) is None

    async def test_one_value_per_namespace_and_key(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        places = [
            ("app", "b.c"),
            ("app.b", "c"),
            ("app", ""),
            ("app.b", ""),
            ("app.b.c", ""),
            ("App", ""),
        ]
        writes = [set_value(value(Any, space, key), f"{space}/{key}") for space, key in places]
        writes += [
            append_list(list_of(Any, f"list.{space}", key), f"{space}/{key}")
            for space, key in places
        ]
        await checked.commit(*writes)
        await checked.everything()
        for space, key in places:
            found = await checked.storage.get_value(value(Any, space, key), BACKGROUND)
            assert found is not None
            assert found.value == f"{space}/{key}"

    async def test_scan_values_by_prefix_and_code_point(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        shuffled = sorted(AWKWARD_KEYS, key=lambda key: key[::-1])
        writes: list[Write] = [set_value(value(Any, "app.keys", key), key) for key in shuffled]
        writes += [
            set_value(value(Any, other, "a"), 0) for other in ("app.key", "app.keys.a", "app_keys")
        ]
        await checked_chain(checked, writes)
        for prefix in (*AWKWARD_KEYS, "op:", "op:step:", "\ud7f0", "nothing", "\u00ea"):
            await checked.scan("app.keys", prefix)
        await checked.scan("app.absent", "")
        await checked.commit(
            delete_value(value(Any, "app.keys", "a")), set_value(value(Any, "app.keys", "a%"), 1)
        )
        await checked.scan("app.keys", "a")

    async def test_lists_page_in_both_orders(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        log, other = list_of(Any, "app.log", "a"), list_of(Any, "app.log", "ab")
        for number in range(30):
            # Unrelated writes leave gaps between the elements' sequence numbers.
            writes = [append_list(log, {"n": number}), set_value(value(Any, "app.gap"), number)]
            await checked.commit(*writes, append_list(other, -number))
        seqs = [seq for seq, _ in checked.model.lists["app.log", "a"]]
        for order in ("asc", "desc"):
            for cursor in (None, 0, seqs[0], seqs[0] + 1, seqs[14], seqs[-1], seqs[-1] + 100):
                for limit in (1, 7, 30, 1_000):
                    await checked.read(
                        "app.log", "a", ListRead(cursor=cursor, order=order, limit=limit)
                    )
        assert await self._walk(checked, "asc") == list(range(30))
        assert await self._walk(checked, "desc") == list(range(29, -1, -1))

    async def _walk(self, checked: Checked, order: Any) -> list[int]:
        log, cursor, seen = list_of(Any, "app.log", "a"), None, list[int]()
        while page := await checked.storage.read_list(
            log, ListRead(cursor=cursor, order=order, limit=4), BACKGROUND
        ):
            assert len(page) <= 4
            seen += [element.value["n"] for element in page]
            cursor = page[-1].seq
        return seen

    async def test_list_deletion_is_whole_and_cursors_are_plain_bounds(
        self, backend: StorageBackend
    ) -> None:
        checked = Checked(await backend.create())
        log, other = list_of(Any, "app.log", "a"), list_of(Any, "app.log", "b")
        await checked.commit(*(append_list(log, n) for n in range(5)), append_list(other, "stays"))
        cursor = checked.model.lists["app.log", "a"][-1][0]
        await checked.commit(delete_list(log), append_list(log, "fresh"))
        await checked.lists()
        await checked.read("app.log", "a", ListRead(cursor=cursor))
        await checked.read("app.log", "a", ListRead(cursor=cursor, order="desc"))
        await checked.commit(delete_list(log))
        await checked.commit(delete_list(log))
        assert await checked.storage.read_list(log, None, BACKGROUND) == []
        await checked.lists()
        await checked.commit(append_list(log, "after"))
        await checked.everything()

    async def test_list_pages_have_a_default_and_a_ceiling(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        log = list_of(Any, "app.log")
        await checked.commit(*(append_list(log, n) for n in range(MAX_PAGE + 5)))
        for order in ("asc", "desc"):
            default = await checked.storage.read_list(log, ListRead(order=order), BACKGROUND)
            assert len(default) == 1_000
            await checked.read("app.log", "", ListRead(order=order, limit=MAX_PAGE))
            await checked.read("app.log", "", ListRead(order=order, limit=MAX_PAGE + 1))
            await checked.read("app.log", "", ListRead(order=order, limit=2**53 - 1))
        assert len(await checked.storage.read_list(log, None, BACKGROUND)) == 1_000

    async def test_addresses_are_plain_text(self, backend: StorageBackend) -> None:
        storage = await backend.create()
        for namespace, key in (
            ("", "k"),
            ("a\x00", ""),
            ("a", "\x00"),
            ("a\ud800", ""),
            ("a", "\udfff"),
        ):
            with expect(InvalidArgument):
                await storage.get_value(value(Any, namespace, key), BACKGROUND)
            with expect(InvalidArgument):
                await storage.read_list(list_of(Any, namespace, key), None, BACKGROUND)

    async def test_bad_list_limits_are_refused(self, backend: StorageBackend) -> None:
        storage = await backend.create()
        for limit in (0, -1, 2**53):
            with expect(InvalidArgument):
                await storage.read_list(list_of(Any, "app.log"), ListRead(limit=limit), BACKGROUND)
