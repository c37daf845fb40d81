"""What a compaction covers: cuts, split turns, the retained tail, files, earlier summaries."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.compaction.prepare import (
    Limits,
    fit_tail,
    prepare_branch_summary,
    prepare_compaction,
    restated_messages,
)
from harness.compaction.tokens import estimate_tokens
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    plain_text,
)
from harness.operation.payloads import CompactionPreparation, FileOperations
from tests.compaction.support import (
    WIDE,
    compacted,
    entries_of,
    keeping,
    projected,
    result,
    said,
    text_of,
    use,
    user,
)


def prepare(
    messages: Sequence[AgentMessage], keep: int, limits: Limits | None = None
) -> CompactionPreparation | None:
    return prepare_compaction(entries_of(messages), messages, keeping(keep), limits)


def parts_of(preparation: CompactionPreparation) -> tuple[AgentMessage, ...]:
    return (
        *preparation.messages_to_summarize,
        *preparation.turn_prefix_messages,
        *preparation.retained_tail,
    )


LONG = text_of(50)


def test_whole_turns_are_cut_off() -> None:
    messages = [user(LONG), said(LONG), user(LONG), said(LONG)]
    made = prepare(messages, 100)
    assert made is not None
    assert made.messages_to_summarize == tuple(messages[:2])
    assert made.turn_prefix_messages == ()
    assert made.retained_tail == tuple(messages[2:])
    assert not made.is_split_turn


def test_a_cut_inside_a_turn_splits_it() -> None:
    messages = [
        user("old"),
        said("older answer"),
        user("the task"),
        said(use("1")),
        result("1", LONG),
        said(use("2")),
        result("2", LONG),
    ]
    made = prepare(messages, 40)
    assert made is not None
    assert made.messages_to_summarize == tuple(messages[:2])
    assert made.turn_prefix_messages == tuple(messages[2:5])
    assert made.retained_tail == tuple(messages[5:])
    assert made.is_split_turn


def test_one_long_turn_is_all_prefix() -> None:
    messages = [user("task"), said(use("1")), result("1", LONG), said(use("2")), result("2", LONG)]
    made = prepare(messages, 10)
    assert made is not None
    assert made.messages_to_summarize == ()
    assert made.turn_prefix_messages == tuple(messages[:3])
    assert made.is_split_turn


def test_a_batch_whose_results_are_too_large_stays_with_its_call() -> None:
    batch = [said(use("1"), use("2")), result("1", LONG), result("2", LONG)]
    made = prepare([user("task"), *batch], 10)
    assert made is not None
    assert made.retained_tail == tuple(batch)


def test_input_between_call_and_result_is_no_place_to_cut() -> None:
    # Imported histories look like this.
    messages = [user("task"), said(use("1")), user(LONG), result("1", LONG), said("done")]
    for keep in range(1, 200, 7):
        made = prepare(messages, keep)
        if made is not None:
            assert len(made.retained_tail) in (1, 4)


def test_a_repeated_call_id_belongs_to_its_newest_call() -> None:
    messages = [user("a"), said(use("1")), result("1"), said(use("1")), result("1", LONG)]
    made = prepare(messages, 10)
    assert made is not None
    assert made.retained_tail == tuple(messages[3:])


@pytest.mark.parametrize(
    "turn",
    [
        user(LONG),
        CustomMessage(custom_type="c", content=LONG, timestamp=1),
        BranchSummaryMessage(summary=LONG, from_id=None, timestamp=1),
    ],
)
def test_any_input_begins_a_turn(turn: AgentMessage) -> None:
    messages = [user("old"), said("answer"), turn]
    made = prepare(messages, 10)
    assert made is not None
    assert made.messages_to_summarize == tuple(messages[:2])
    assert made.retained_tail == (turn,)
    assert not made.is_split_turn


def test_nothing_to_summarize() -> None:
    assert prepare([], 10) is None
    assert prepare([user(LONG)], 10) is None
    assert prepare([user("a"), said("b")], 1_000) is None
    assert prepare([said(use("1")), result("1", LONG)], 10) is None
    fresh = compacted("before", [user(LONG), said(LONG)])
    assert prepare_compaction(fresh, projected(fresh), keeping(1)) is None


def test_a_refused_context_gives_up_half_whatever_its_size_is_thought_to_be() -> None:
    messages = [user(LONG), said(LONG), user(LONG), said(LONG)]
    assert prepare(messages, 1_000) is None
    made = prepare(messages, 1_000, Limits(WIDE, refused=WIDE))
    assert made is not None
    assert made.retained_tail == tuple(messages[3:])


def test_a_single_message_is_not_helped_by_a_compaction() -> None:
    huge = user(text_of(5_000))
    limits = Limits(1_000, refused=5_000)
    assert prepare([huge], 100, limits) is None
    # It would stay, and the conversation before it would be lost for nothing.
    assert prepare([user("a"), said("b"), huge], 100, limits) is None
    # Once something comes after it, it can go.
    later = [user("next"), said(use("1")), result("1", text_of(30))]
    for keep in (1, 30, 100):
        made = prepare([user("a"), said("b"), huge, *later[:1]], keep, Limits(1_000))
        assert made is not None
        assert made.retained_tail == (later[0],)
        made = prepare([user("a"), huge, *later], keep, limits)
        assert made is not None
        assert huge not in made.retained_tail


def test_an_output_larger_than_the_window_is_shortened_where_it_stays() -> None:
    image = ImageContent(data="aGk=", mime_type="image/png")
    calls = said(use("1"), use("2"), use("3"))
    results = [
        result("1", "begin " + text_of(9_000) + " end"),
        result("2", "small"),
        result("3", text_of(30), image),
    ]
    made = prepare([user("task"), calls, *results], 100, Limits(1_000))
    assert made is not None
    kept = made.retained_tail
    assert kept[0] == calls
    assert kept[2] == results[1]
    assert sum(estimate_tokens(message) for message in kept) <= 750
    first, last = kept[1], kept[3]
    assert isinstance(first, ToolResultMessage)
    assert isinstance(last, ToolResultMessage)
    text = plain_text(first.content)
    assert text.startswith("begin four")
    assert "characters left out" in text
    assert text.endswith(" end")
    assert not any(isinstance(part, ImageContent) for part in last.content)
    assert "an image was here" in plain_text(last.content)


def test_what_the_provider_counted_decides_how_much_can_stay() -> None:
    batch = [said(use("1"), use("2")), result("1", text_of(700)), result("2", text_of(700))]
    task = [user("task"), *batch]

    def kept(limits: Limits) -> int:
        made = prepare(task, 100, limits)
        assert made is not None
        assert made.retained_tail[0] == batch[0]
        return sum(estimate_tokens(message) for message in made.retained_tail)

    whole = sum(estimate_tokens(message) for message in batch)
    assert kept(Limits(4_000)) == whole
    assert kept(Limits(2_000, refused=2_000)) < 0.75 * 1_000
    assert kept(Limits(2_000, refused=6_000)) < 0.3 * 1_000
    assert kept(Limits(2_000, overhead=600)) < kept(Limits(2_000))


def test_what_a_compaction_kept_is_shortened_when_it_is_refused_again() -> None:
    tail = [said(use("1")), result("1", text_of(1_400))]
    entries = compacted("what was", tail)
    context = projected(entries)
    assert prepare_compaction(entries, context, keeping(100), Limits(2_000)) is None
    made = prepare_compaction(entries, context, keeping(100), Limits(2_000, refused=5_000))
    assert made is not None
    assert (made.messages_to_summarize, made.turn_prefix_messages) == ((), ())
    assert made.previous_summary == "what was"
    assert sum(estimate_tokens(message) for message in made.retained_tail) < 300
    # Where nothing can be shortened, another compaction would change nothing.
    entries = compacted("what was", [user("short")])
    again = Limits(2_000, refused=5_000)
    assert prepare_compaction(entries, projected(entries), keeping(100), again) is None


def test_a_tail_that_fits_is_left_alone() -> None:
    tail = (said(use("1")), result("1", LONG))
    assert fit_tail(tail, 1_000) is tail
    words = (user(text_of(900)),)
    assert fit_tail(words, 10) is words


def test_a_later_compaction_updates_the_earlier_summary() -> None:
    tail = [user("task"), said(use("1")), result("1")]
    entries = compacted("what was", tail, [said(use("2")), result("2", LONG), said(LONG)])
    messages = projected(entries)
    made = prepare_compaction(entries, messages, keeping(20))
    assert made is not None
    assert made.previous_summary == "what was"
    # The turn's beginning was kept by the earlier compaction: one summary covers all of it.
    assert made.messages_to_summarize == tuple(messages[1:-1])
    assert made.turn_prefix_messages == ()
    assert not made.is_split_turn
    assert made.retained_tail == tuple(messages[-1:])


def test_a_turn_that_began_before_the_earlier_compaction_is_not_split_again() -> None:
    entries = compacted("what was", [said(use("1")), result("1")], [said(LONG), said(LONG)])
    messages = projected(entries)
    made = prepare_compaction(entries, messages, keeping(20))
    assert made is not None
    assert made.messages_to_summarize == tuple(messages[1:4])
    assert not made.is_split_turn


def test_a_new_turn_after_an_earlier_compaction_is_split_on_its_own() -> None:
    later = [user("next"), said(use("2")), result("2", LONG), said(LONG)]
    entries = compacted("what was", [user("old"), said("done")], later)
    made = prepare_compaction(entries, projected(entries), keeping(20))
    assert made is not None
    assert made.messages_to_summarize == (user("old"), said("done"))
    assert made.turn_prefix_messages == tuple(later[:3])
    assert made.previous_summary == "what was"


def test_the_list_of_files_is_taken_off_the_earlier_summary() -> None:
    note = (
        "\n\n<read-files>\na.py\nb.py\n</read-files>\n\n<modified-files>\nc.py\n</modified-files>"
    )
    text = "I saw <read-files> once.\n\nAnd more."
    for ending in (note, note[: note.index("\n\n<modified")], ""):
        entries = compacted(text + ending, [], [user(LONG), said(LONG), user(LONG)])
        made = prepare_compaction(entries, projected(entries), keeping(10))
        assert made is not None
        assert made.previous_summary == text


def test_files_are_collected_from_what_is_summarized_and_from_earlier() -> None:
    calls = said(
        use("1", "read", path="r.py"),
        use("2", "write", path="w.py"),
        use("3", "edit", path="e.py"),
        use("4", "read", path=3),
        use("5", "bash", path="no.py"),
        use("6", "read"),
    )
    results = [result(str(number)) for number in range(1, 7)]
    later = [user("a"), calls, *results, user("b"), said(use("7", "read", path="kept.py"))]
    details = {"readFiles": ["old.py", 7], "modifiedFiles": ["changed.py"]}
    entries = compacted("before", [], later, details)
    made = prepare_compaction(entries, projected(entries), keeping(10))
    assert made is not None
    assert made.file_ops == FileOperations(
        read=("old.py", "r.py"), written=("w.py",), edited=("changed.py", "e.py")
    )
    for odd in (None, [], {"readFiles": "x"}, {"readFiles": None}):
        entries = compacted("before", [], later, odd)
        made = prepare_compaction(entries, projected(entries), keeping(10))
        assert made is not None
        assert made.file_ops.read == ("r.py",)


def test_the_size_before_is_the_reported_one_and_not_the_stale_one() -> None:
    tail = [user("a"), said("b", reported=90_000)]
    entries = compacted("before", tail, [user(LONG), said(LONG), user(LONG)])
    made = prepare_compaction(entries, projected(entries), keeping(10))
    assert made is not None
    assert made.tokens_before < 300
    entries = compacted("before", tail, [user(LONG), said(LONG, reported=500)])
    made = prepare_compaction(entries, projected(entries), keeping(10))
    assert made is not None
    assert made.tokens_before == 500


def test_what_a_compaction_repeats_leaves_failed_responses_out() -> None:
    failed = msgspec.structs.replace(said("x"), stop_reason="error")
    assert restated_messages(compacted("s", [user("a"), failed, said("b")], [user("c")])) == 3
    assert restated_messages(entries_of([user("a")])) == 0
    assert restated_messages([]) == 0


def test_a_branch_summary_takes_the_newest_that_fit() -> None:
    messages = [user(text_of(96)), said(text_of(96)), user(text_of(46))]
    assert prepare_branch_summary(messages, 150).messages == tuple(messages[1:])
    assert prepare_branch_summary(messages, 10_000).total_tokens == 250
    # The newest one stays even if it alone is too large; the request cuts it.
    assert prepare_branch_summary(messages, 1).messages == tuple(messages[2:])
    assert prepare_branch_summary([], 1).messages == ()


lengths = st.integers(0, 60)
ids = st.sampled_from(["1", "2", "3"])
turns = st.one_of(
    lengths.map(lambda n: [user(text_of(n))]),
    lengths.map(lambda n: [said(text_of(n), reported=n)]),
    st.lists(st.tuples(ids, lengths), min_size=1, max_size=3, unique_by=lambda call: call[0]).map(
        lambda calls: [
            said("", *(use(call_id, "read", path=call_id) for call_id, _ in calls)),
            *(result(call_id, text_of(n)) for call_id, n in calls),
        ]
    ),
)
conversations = st.lists(turns, max_size=10).map(
    lambda parts: [message for part in parts for message in part]
)


def pairs(messages: Sequence[AgentMessage]) -> list[tuple[int, int]]:
    """Positions of calls and their results."""
    found: list[tuple[int, int]] = []
    called: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            called.update({p.id: index for p in message.content if isinstance(p, ToolCall)})
        elif isinstance(message, ToolResultMessage):
            found.append((called[message.tool_call_id], index))
    return found


@hypothesis_settings(max_examples=500, deadline=None)
@given(conversations, st.integers(0, 200), st.booleans(), st.booleans())
def test_a_preparation_loses_nothing_and_parts_no_result_from_its_call(
    messages: list[AgentMessage], keep: int, again: bool, refused: bool
) -> None:
    entries = compacted("before", [user("kept")], messages) if again else entries_of(messages)
    context = projected(entries)
    made = prepare_compaction(
        entries, context, keeping(keep), Limits(WIDE, refused=WIDE if refused else None)
    )
    if made is None:
        return
    body = context[1:] if again else context
    assert parts_of(made) == tuple(body)
    assert made.messages_to_summarize or made.turn_prefix_messages
    assert made.is_split_turn == bool(made.turn_prefix_messages)
    assert made.retained_tail
    # The tail ends as the conversation did, and begins with something a request may hold there.
    assert made.retained_tail[-1] == context[-1]
    assert not isinstance(made.retained_tail[0], ToolResultMessage)
    cut = len(body) - len(made.retained_tail)
    for call, answer in pairs(body):
        assert (call < cut) == (answer < cut)
    if made.turn_prefix_messages:
        assert not isinstance(
            made.turn_prefix_messages[0], AssistantMessage | ToolResultMessage
        ) or (not made.messages_to_summarize)


@hypothesis_settings(max_examples=300, deadline=None)
@given(conversations, st.integers(0, 100))
def test_a_preparation_always_shrinks_the_context_or_leaves_one_exchange(
    messages: list[AgentMessage], keep: int
) -> None:
    made = prepare(messages, keep, Limits(400))
    if made is None:
        return
    size = sum(estimate_tokens(message) for message in made.retained_tail)
    exchange = [m for m in made.retained_tail if not isinstance(m, ToolResultMessage)]
    assert size <= max(keep, 300) or len(exchange) == 1


@hypothesis_settings(max_examples=100, deadline=None)
@given(conversations)
def test_compactions_one_after_the_other_come_to_an_end(messages: list[AgentMessage]) -> None:
    entries = entries_of(messages)
    for _ in range(3):
        context = projected(entries)
        made = prepare_compaction(entries, context, keeping(10), Limits(WIDE))
        if made is None:
            return
        entries = compacted("summary", made.retained_tail)
        assert prepare_compaction(entries, projected(entries), keeping(0), Limits(WIDE)) is None
        assert isinstance(projected(entries)[0], CompactionSummaryMessage)
        entries += entries_of([user("more"), said("and more")])


def test_content_stays_text() -> None:
    """A shortened result is still what a result may be."""
    (shortened,) = fit_tail((result("1", text_of(5_000)),), 10)
    assert isinstance(shortened, ToolResultMessage)
    assert all(isinstance(part, TextContent) for part in shortened.content)
    assert shortened.tool_call_id == "1"
