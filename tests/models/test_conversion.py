"""What a provider gets to see of each kind of message, and what it wants back with a block."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.messages import (
    AgentMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    TextContent,
    ToolResultMessage,
    UserMessage,
    empty_assistant,
)
from harness.models.conversion import to_provider_messages
from harness.models.foreign_signature import Provenance, pack, unpack

PASSING: tuple[AgentMessage, ...] = (
    UserMessage(content="a", timestamp=1),
    empty_assistant(provider="p", model="m", api="x", timestamp=2, stop_reason="stop"),
    ToolResultMessage(
        tool_call_id="1", tool_name="t", content=(), is_error=False, timestamp=3, details={"x": 1}
    ),
)


def test_what_providers_know_passes_as_it_is() -> None:
    assert to_provider_messages(PASSING) == PASSING


def test_custom_messages_are_user_input() -> None:
    image = ImageContent(data="aGk=", mime_type="image/png")
    content = (TextContent(text="look"), image)
    custom = CustomMessage(custom_type="note", content=content, timestamp=4, details={"x": 1})
    assert to_provider_messages((custom,)) == (UserMessage(content=content, timestamp=4),)


@pytest.mark.parametrize(
    "message",
    [
        CompactionSummaryMessage(summary="It was {dark} & cold.", tokens_before=9, timestamp=5),
        BranchSummaryMessage(summary="It was {dark} & cold.", from_id=None, timestamp=5),
    ],
)
def test_summaries_are_wrapped_user_input(
    message: CompactionSummaryMessage | BranchSummaryMessage,
) -> None:
    (wrapped,) = to_provider_messages((message,))
    assert isinstance(wrapped, UserMessage)
    assert isinstance(wrapped.content, str)
    assert "<summary>\nIt was {dark} & cold.\n</summary>" in wrapped.content
    assert wrapped.timestamp == 5


def test_the_two_kinds_of_summary_read_differently() -> None:
    compaction, branch = to_provider_messages(
        (
            CompactionSummaryMessage(summary="s", tokens_before=9, timestamp=5),
            BranchSummaryMessage(summary="s", from_id="x", timestamp=5),
        )
    )
    assert compaction.content != branch.content


def test_a_bare_signature_stays_as_it_is() -> None:
    assert pack(Provenance(signature="sig")) == "sig"
    assert unpack("sig") == Provenance(signature="sig")
    assert pack(Provenance()) is None
    assert pack(Provenance(signature="")) is None
    assert unpack(None) == unpack("") == Provenance()


@pytest.mark.parametrize("text", ['{"laneway":', '{"laneway":[]}', '{"laneway":{"id":1}}', "{}"])
def test_what_only_looks_packed_does_no_harm(text: str) -> None:
    assert unpack(text).id is None


def test_details_that_json_cannot_hold_are_left_out() -> None:
    packed = pack(Provenance(id="i", details={"x": object()}))  # pyright: ignore[reportArgumentType]
    assert unpack(packed) == Provenance(id="i")


values = st.text(min_size=1)


@given(
    st.none() | values,
    st.none() | values,
    st.none() | st.dictionaries(values, st.integers() | values, min_size=1),
)
def test_packing_is_undone_by_unpacking(
    id_: str | None, signature: str | None, details: dict[str, object] | None
) -> None:
    provenance = Provenance(id_, signature, details)  # pyright: ignore[reportArgumentType]
    packed = pack(provenance)
    if packed is not None:
        json.dumps(packed)
    assert unpack(packed) == provenance
