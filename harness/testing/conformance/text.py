"""Conformance: what arrives from outside comes back the same from every backend (design §4)."""

from __future__ import annotations

from typing import Any

from harness.codec import foreign_json
from harness.context import BACKGROUND
from harness.entries import CustomPayload, MessagePayload
from harness.messages import TextContent, ToolResultMessage
from harness.storage.address import list_of, value
from harness.storage.writes import append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.backend import StorageBackend
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.samples import Samples
from harness.usage import NewUsageRow

FOREIGN_TEXTS = (
    "",
    "\x00",
    "a\x00b\x00",
    "\ud800",
    "\udfff tail",
    "pair the wrong way \ude00\ud83d",
    "\U0001f600 and \ud83d alone",
    "\u2028\u2029\ufeff\ufffe\uffff",
    'quote " backslash \\ slash / control \x01\x1b\x7f\x85',
    "\\u0000 \\ud800 written out",
    "line\r\nbreaks\rof\nall\u000b kinds",
    "x" * 1_000_000,
    "é\x00\ud800" * 50_000,
)
FOREIGN_NUMBERS = (
    0,
    -1,
    2**53 - 1,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**64,
    10**40,
    -(10**40),
    0.1,
    -0.5,
    1e-300,
    1.7976931348623157e308,
    5e-324,
    1.0,
    123456789.123456789,
)


class TextConformance:
    """Foreign text and numbers."""

    async def test_text_survives_everywhere(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        parent: str | None = None
        for text in FOREIGN_TEXTS:
            entry = samples.entry(parent, samples.user(text))
            details = {"text": text, text[:40]: [text[:10], {"nested": text[:5]}]}
            note = samples.entry(entry.id, CustomPayload(custom_type="note", data=details))
            await checked.commit(
                insert_entry(entry),
                insert_entry(note),
                set_value(value(Any, "app.text", "k"), details),
                append_list(list_of(Any, "app.texts"), details),
                insert_usage(
                    NewUsageRow(id=samples.new_id(), usage=samples.usage(), details=details)
                ),
            )
            parent = note.id
        await checked.everything()
        await checked.storage.close(BACKGROUND)
        await Checked(await backend.reopen(), checked.model).everything()

    async def test_numbers_survive_everywhere(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        numbers = list(FOREIGN_NUMBERS)
        await checked.commit(
            set_value(value(Any, "app.numbers"), numbers),
            append_list(list_of(Any, "app.number_list"), numbers),
            insert_entry(samples.entry(None, CustomPayload(custom_type="n", data=numbers))),
            insert_usage(NewUsageRow(id=samples.new_id(), usage=samples.usage(), details=numbers)),
        )
        await checked.everything()
        await checked.storage.close(BACKGROUND)
        storage = await backend.reopen()
        await Checked(storage, checked.model).everything()
        found = await storage.get_value(value(Any, "app.numbers"), BACKGROUND)
        assert found is not None
        assert [type(number) for number in found.value] == [type(number) for number in numbers]

    async def test_a_tool_result_made_of_foreign_values(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        details = foreign_json(
            {
                "nan": float("nan"),
                "inf": [float("inf"), float("-inf")],
                "bytes": b"\x00\xff",
                7: (1, 2),
            }
        )
        assert details == {
            "nan": "NaN",
            "inf": ["Infinity", "-Infinity"],
            "bytes": "AP8=",
            "7": [1, 2],
        }
        message = ToolResultMessage(
            tool_call_id="call\x00\ud800",
            tool_name="shell",
            content=tuple(TextContent(text=text) for text in FOREIGN_TEXTS),
            is_error=True,
            timestamp=5,
            details=details,
        )
        entry = samples.entry(None, MessagePayload(message=message, terminate=True))
        await checked.commit(insert_entry(entry))
        await checked.everything()

    async def test_keys_of_json_objects_keep_their_order(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        address = value(Any, "app.ordered")
        document = {"zebra": 1, "a": 2, "mm": {"y": 1, "x": 2}, "": 3}
        await checked.commit(set_value(address, document))
        await checked.storage.close(BACKGROUND)
        found = await (await backend.reopen()).get_value(address, BACKGROUND)
        assert found is not None
        assert list(found.value) == list(document)
        assert list(found.value["mm"]) == ["y", "x"]
