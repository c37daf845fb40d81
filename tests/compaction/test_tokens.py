"""Counting tokens: reports of the provider first, estimates for the rest; settings that fit a window."""

from __future__ import annotations

import msgspec
import pytest

from harness.compaction.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    context_tokens,
    context_tokens_of,
    estimate_tokens,
    exceeds_threshold,
    fitted,
    text_tokens,
)
from harness.messages import ImageContent, TextContent, ThinkingContent, UserMessage
from harness.settings import CompactionSettings
from harness.usage import ZERO_USAGE, Usage
from tests.compaction.support import keeping, result, said, text_of, use, user


def test_the_newest_report_covers_what_came_before_it() -> None:
    messages = [
        user(text_of(5_000)),
        said("a", reported=70),
        user("b"),
        said("c", reported=90),
        user(text_of(10)),
    ]
    assert context_tokens(messages) == 90 + 10 + MESSAGE_TOKENS


def test_without_a_report_everything_is_estimated_and_the_prompt_counts() -> None:
    messages = [user(text_of(10)), said(text_of(20))]
    assert context_tokens(messages, overhead=lambda: 300) == 30 + 2 * MESSAGE_TOKENS + 300


def test_a_report_leaves_the_prompt_out_of_the_count() -> None:
    assert context_tokens([user("a"), said("b", reported=50)], overhead=lambda: 300) == 50


def test_reports_from_before_a_compaction_do_not_count() -> None:
    summary_and_tail = [user(text_of(10)), said(text_of(5), reported=100_000), user("next")]
    assert context_tokens(summary_and_tail, restated=2) == 10 + 5 + 1 + 3 * MESSAGE_TOKENS
    later = [*summary_and_tail, said("c", reported=40)]
    assert context_tokens(later, restated=2) == 40


@pytest.mark.parametrize("stop", ["error", "aborted"])
def test_a_failed_response_reports_nothing(stop: str) -> None:
    failed = msgspec.structs.replace(said(text_of(3), reported=9_000), stop_reason=stop)
    assert context_tokens([user(text_of(4)), failed]) == 4 + 3 + 2 * MESSAGE_TOKENS


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (Usage(input=10, output=5, cache_read=20, cache_write=3, total_tokens=0), 38),
        (Usage(input=10, output=5, cache_read=0, cache_write=0, total_tokens=17), 17),
        # Only the output is known: that says nothing of how large the context is.
        (Usage(input=0, output=5, cache_read=0, cache_write=0, total_tokens=5), 0),
        (Usage(input=0, output=5, cache_read=0, cache_write=0, total_tokens=40), 40),
        (ZERO_USAGE, 0),
    ],
)
def test_what_a_report_says(usage: Usage, tokens: int) -> None:
    assert context_tokens_of(usage) == tokens


def test_every_kind_of_content_has_a_size() -> None:
    image = ImageContent(data="", mime_type="image/png")
    parts = UserMessage(content=(TextContent(text=text_of(2)), image), timestamp=1)
    assert estimate_tokens(parts) == 2 + IMAGE_TOKENS + MESSAGE_TOKENS
    call = said(use("1", "read", path="x" * 80))
    assert estimate_tokens(call) > 20
    thought = msgspec.structs.replace(
        said(), content=(ThinkingContent(thinking=text_of(6), thinking_signature="long" * 99),)
    )
    assert estimate_tokens(thought) == 6 + MESSAGE_TOKENS
    assert estimate_tokens(result("1", "")) == MESSAGE_TOKENS


def test_scripts_beyond_ascii_take_more() -> None:
    assert text_tokens("灯台守" * 100) > 2 * text_tokens("abc" * 100)
    assert text_tokens("\ud800" * 4) == 3


def test_the_threshold_is_the_window_less_the_reserve() -> None:
    assert not exceeds_threshold(900, 1_000, 100)
    assert exceeds_threshold(901, 1_000, 100)


@pytest.mark.parametrize("window", [16, 2_048, 8_192, 32_768, 1_000_000])
def test_settings_fit_any_window(window: int) -> None:
    settings = fitted(CompactionSettings(), window)
    threshold = window - settings.reserve_tokens
    assert 0 < settings.keep_recent_tokens <= threshold // 2
    assert exceeds_threshold(window, window, settings.reserve_tokens)
    assert not exceeds_threshold(window // 2, window, settings.reserve_tokens)


def test_settings_that_fit_stay() -> None:
    settings = keeping(300, reserve=400)
    assert fitted(settings, 2_048) is settings
