"""Writing summaries: what is asked, how much of it, and what happens when it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from harness.compaction.prepare import prepare_branch_summary, prepare_compaction
from harness.compaction.summarize import (
    MAX_SIZES,
    SummaryFailed,
    SummaryReply,
    SummaryTooLarge,
    read_summary,
    summarize_branch,
    summarize_compaction,
)
from harness.compaction.tokens import text_tokens
from harness.messages import AssistantMessage, UserMessage
from harness.models.protocol import Model, ModelContext
from harness.operation.payloads import CompactionPreparation, FileOperations
from harness.settings import CompactionSettings
from harness.usage import Usage
from tests.compaction.support import (
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


def model(window: int, max_tokens: int = 1_000) -> Model:
    return Model(provider="p", model_id="m", api="a", context_window=window, max_tokens=max_tokens)


def usage(input_tokens: int, output: int) -> Usage:
    total = input_tokens + output
    return Usage(input=input_tokens, output=output, cache_read=0, cache_write=0, total_tokens=total)


def too_large(text: str = "") -> AssistantMessage:
    return msgspec.structs.replace(
        said(*([text] if text else [])),
        stop_reason="error",
        error_kind="overflow",
        error_message="prompt is too long",
        usage=usage(7, 0),
    )


@dataclass
class Provider:
    """Takes prompts of up to `takes` estimated tokens, whatever the model is said to take."""

    takes: int = 10**9
    asked: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    async def __call__(self, context: ModelContext, limit: int) -> SummaryReply:
        (message,) = context.messages
        assert isinstance(message, UserMessage)
        assert isinstance(message.content, str)
        self.asked.append(message.content)
        self.limits.append(limit)
        if text_tokens(message.content) + text_tokens(context.system_prompt) > self.takes:
            raise SummaryTooLarge(too_large())
        return SummaryReply(f"summary {len(self.asked)}", usage(10, 5))


def prepared(messages: list, keep: int = 10, reserve: int = 1_000) -> CompactionPreparation:
    made = prepare_compaction(entries_of(messages), messages, keeping(keep, reserve))
    assert made is not None
    return made


STORY = [user("the goal"), said("a " + text_of(30)), user("next"), said("b " + text_of(30))]
SPLIT = [*STORY, user("task"), said(use("1")), result("1", text_of(50)), said(text_of(20))]


async def test_whole_turns_take_one_request() -> None:
    provider = Provider()
    preparation = prepared(STORY, keep=36)
    assert preparation.retained_tail == tuple(STORY[2:])
    made = await summarize_compaction(preparation, model(100_000), "names matter", provider)
    (asked,) = provider.asked
    assert asked.startswith("<conversation>\n[user] the goal")
    assert asked.endswith("In particular: names matter")
    assert made.summary == "summary 1"
    assert made.retained_tail == tuple(STORY[2:])
    assert not made.from_hook


async def test_a_split_turn_takes_two_requests_and_their_cost_is_added() -> None:
    provider = Provider()
    preparation = prepared(SPLIT)
    assert preparation.is_split_turn
    made = await summarize_compaction(preparation, model(100_000), None, provider)
    assert made.summary.startswith(
        "summary 1\n\n---\n\nBeginning of the current turn:\n\nsummary 2"
    )
    assert provider.limits == [800, 400]
    assert made.usage == usage(20, 10)
    assert "[user] task" not in provider.asked[0]
    assert "[user] task" in provider.asked[1]


async def test_an_earlier_summary_is_updated() -> None:
    entries = compacted("what was", [], [user(text_of(50)), said("b"), user(text_of(50))])
    made = prepare_compaction(entries, projected(entries), keeping(10))
    assert made is not None
    provider = Provider()
    payload = await summarize_compaction(made, model(100_000), None, provider)
    (asked,) = provider.asked
    assert "<earlier-summary>\nwhat was\n</earlier-summary>" in asked
    assert payload.summary == "summary 1"


async def test_an_earlier_summary_with_nothing_new_is_kept_without_asking() -> None:
    preparation = CompactionPreparation(
        messages_to_summarize=(),
        turn_prefix_messages=(user("task"),),
        retained_tail=(said("x"),),
        is_split_turn=True,
        tokens_before=1,
        file_ops=FileOperations(),
        settings=CompactionSettings(),
        previous_summary="what was",
    )
    provider = Provider()
    made = await summarize_compaction(preparation, model(100_000), None, provider)
    assert len(provider.asked) == 1
    assert made.summary.startswith("what was\n\n---\n\n")


@pytest.mark.parametrize("window", [1_024, 2_048, 8_192])
async def test_a_request_fits_the_window_however_much_there_is(window: int) -> None:
    story = [user("the goal")]
    for number in range(200):
        story += [said(use(str(number), "read", path=f"{number}.py"))]
        story += [result(str(number), text_of(400)), said(text_of(60))]
    for previous in (None, "earlier " + text_of(5_000)):
        preparation = msgspec.structs.replace(
            prepared([*story, user("last")], reserve=window // 4), previous_summary=previous
        )
        provider = Provider(takes=window - min(128, window // 4))
        await summarize_compaction(preparation, model(window, 128), None, provider)
        assert len(provider.asked) == 1, "it fits at once"
        assert "[user] the goal" in provider.asked[0]


async def test_a_branch_summary_fits_too() -> None:
    preparation = prepare_branch_summary([user("the goal " + text_of(90_000))], 1_000)
    provider = Provider(takes=2_048 - 128)
    made = await summarize_branch(preparation, model(2_048, 128), "e", None, provider)
    assert len(provider.asked) == 1
    assert (made.summary, made.from_id) == ("summary 1", "e")


async def test_what_the_provider_refuses_is_asked_again_with_less() -> None:
    story = [user("the goal"), *(said(text_of(60)) for _ in range(200)), user("last")]
    provider = Provider(takes=1_500)
    made = await summarize_compaction(prepared(story), model(128_000), None, provider)
    sizes = [text_tokens(text) for text in provider.asked]
    assert sizes == sorted(sizes, reverse=True)
    assert 2 < len(sizes) < MAX_SIZES
    refused = len(sizes) - 1
    assert made.usage == usage(7 * refused + 10, 5), "refusals that were billed are counted"


async def test_a_provider_that_refuses_everything_is_not_asked_for_ever() -> None:
    story = [user(text_of(9_000)), *(said(text_of(60)) for _ in range(200)), user("last")]
    provider = Provider(takes=0)
    with pytest.raises(SummaryTooLarge, match="prompt is too long") as failure:
        await summarize_compaction(prepared(story), model(128_000), None, provider)
    assert len(provider.asked) <= MAX_SIZES
    assert not failure.value.retryable


async def test_outputs_of_ten_thousand_files_do_not_fill_the_summary() -> None:
    calls = said(*(use(str(n), "edit", path=f"src/{n}.py") for n in range(10_000)))
    results = [result(str(n)) for n in range(10_000)]
    preparation = prepared([user("a"), calls, *results, user("b")], reserve=160)
    made = await summarize_compaction(preparation, model(2_048, 128), None, Provider())
    assert text_tokens(made.summary) < 300
    assert isinstance(made.details, dict)
    modified = made.details["modifiedFiles"]
    assert isinstance(modified, list)
    assert len(modified) == 10_000


def test_a_response_is_read_for_its_summary() -> None:
    def ended(text: str, stop: str, output: int) -> AssistantMessage:
        message = said(text)
        return msgspec.structs.replace(message, stop_reason=stop, usage=usage(100, output))

    assert read_summary(ended(" text ", "stop", 10), 100).text == "text"
    assert read_summary(ended("text", "length", 100), 100).text == "text"
    # Counted a little differently than asked: still long enough.
    assert read_summary(ended("text", "length", 90), 100).text == "text"
    with pytest.raises(SummaryTooLarge) as cut:
        read_summary(ended("te", "length", 3), 100)
    assert cut.value.reply.text == "te"
    with pytest.raises(SummaryTooLarge):
        read_summary(too_large(), 100)
    for stop in ("stop", "error", "toolUse"):
        with pytest.raises(SummaryFailed) as failed:
            read_summary(ended(" ", stop, 3), 100)
        assert not isinstance(failed.value, SummaryTooLarge)


async def test_a_summary_that_was_cut_is_better_than_none() -> None:
    async def ask(context: ModelContext, limit: int) -> SummaryReply:
        raise SummaryTooLarge(
            msgspec.structs.replace(said("half"), stop_reason="length", usage=usage(90, 1))
        )

    made = await summarize_compaction(prepared(STORY[:3]), model(100_000), None, ask)
    assert "half" in made.summary
