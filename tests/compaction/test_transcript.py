"""The transcript that a summary is written from: readable, within its budget, oldest shortened first."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compaction.file_note import file_note, without_file_note
from harness.compaction.tokens import text_tokens
from harness.compaction.transcript import TOOL_TEXT_TOKENS, shortened, transcript
from harness.messages import (
    BranchSummaryMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    UserMessage,
)
from harness.operation.payloads import FileOperations
from tests.compaction.support import result, said, text_of, use, user

IMAGE = ImageContent(data="aGk=", mime_type="image/png")


def test_every_kind_of_message_is_written() -> None:
    thinking = ThinkingContent(thinking="hidden")
    answer = said("I look", use("1", "read", path="a.py"))
    text = transcript(
        [
            UserMessage(content=(TextContent(text="see"), IMAGE), timestamp=1),
            msgspec.structs.replace(answer, content=(thinking, *answer.content)),
            result("1", "the file"),
            result("2", "no such file", error=True),
            BranchSummaryMessage(summary="elsewhere", from_id=None, timestamp=1),
        ]
    )
    for line in (
        "[user] see (1 image(s))",
        "[assistant] I look",
        '[call] read({"path":"a.py"})',
        "[result] the file",
        "[error] no such file",
        "elsewhere",
    ):
        assert line in text
    assert "hidden" not in text


def test_an_output_is_never_written_whole() -> None:
    text = transcript([result("1", "first " + text_of(9_000) + " last")])
    assert text_tokens(text) < TOOL_TEXT_TOKENS + 10
    assert text.startswith("[result] first")
    assert text.endswith("last")


def test_old_outputs_are_shortened_before_what_was_said() -> None:
    messages = [
        user("the goal"),
        said(text_of(100), use("1")),
        result("1", text_of(300)),
        said(use("2")),
        result("2", text_of(300)),
    ]
    text = transcript(messages, 500)
    assert text_tokens(text) <= 500
    assert text_of(100) in text, "what was said is whole"
    assert text_of(300) in text, "the newest output is whole"
    assert text.count("characters left out") == 1


def test_what_was_said_is_shortened_oldest_first_before_anything_is_left_out() -> None:
    messages = [user("the goal"), *(said(f"step {n} " + text_of(200)) for n in range(4))]
    text = transcript(messages, 700)
    assert text_tokens(text) <= 700
    assert all(f"step {n} four" in text for n in range(4))
    assert "left out here" not in text
    assert text.count(text_of(200)) == 2
    assert text.endswith(text_of(200))


def test_the_goal_and_the_newest_remain_when_the_rest_must_go() -> None:
    middle = [said(f"step {number} " + text_of(50)) for number in range(100)]
    text = transcript([user("the goal"), *middle, user("the end")], 400)
    assert text_tokens(text) <= 400
    assert text.startswith("[user] the goal")
    assert text.endswith("[user] the end")
    assert "earlier parts of the conversation are left out here" in text
    assert "step 99" in text
    assert "step 0 " not in text


def test_one_message_larger_than_the_budget_is_cut_in_the_middle() -> None:
    text = transcript([user("begin " + text_of(10_000) + " end")], 100)
    assert text_tokens(text) <= 100
    assert text.startswith("[user] begin")
    assert text.endswith(" end")


words = st.text(st.sampled_from(["a", " ", "é", "灯", "\U0001f600", "\ud800", "\n"]), max_size=600)
messages = st.lists(
    st.one_of(
        words.map(user),
        words.map(said),
        words.map(lambda text: said(use("1", "t", text=text.replace("\ud800", "")))),
        words.map(lambda text: result("1", text)),
    ),
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(messages, st.integers(1, 600))
def test_a_transcript_keeps_within_its_budget(conversation: list, budget: int) -> None:
    text = transcript(conversation, budget)
    assert text_tokens(text) <= budget
    whole = transcript(conversation)
    # Parts are counted one by one: each rounds up by less than a token, and counts one for a
    # separator of half a token.
    if text_tokens(whole) + 2 * len(conversation) <= budget:
        assert text == whole


@settings(max_examples=200, deadline=None)
@given(words, st.integers(0, 200))
def test_a_shortened_text_keeps_within_its_size(text: str, size: int) -> None:
    short = shortened(text, size)
    assert text_tokens(short) <= size
    if text_tokens(text) <= size:
        assert short == text


paths = st.lists(st.text(max_size=30), max_size=20, unique=True).map(tuple)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), paths, paths, st.integers(1, 200))
def test_a_note_of_files_can_be_taken_off_again(
    summary: str, read: tuple[str, ...], edited: tuple[str, ...], budget: int
) -> None:
    note = file_note(FileOperations(read=read, edited=edited), budget)
    assert without_file_note(summary + note) == summary
    assert text_tokens(note) <= budget + 60


def test_a_note_of_ten_thousand_files_is_short_and_says_so() -> None:
    files = tuple(f"src/module_{number}.py" for number in range(10_000))
    note = file_note(FileOperations(read=files, edited=("changed.py",)), 100)
    assert "changed.py" in note
    assert " more)" in note
    assert len(note) < 700
