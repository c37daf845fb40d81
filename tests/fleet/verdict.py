"""What a play must have left behind, whatever happened in it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

from harness.environment import Environment
from tests.fleet.chaos import Ledger, Stage
from tests.fleet.user import judge_transcript
from tests.fleet.watchman import QUERIES, Watchman

# What no process may have had to say: the sweep repaired something, a part of a host gave up.
_ALARMS = ("repaired the row of operation", "a part of the host ended")


async def judge(place: Stage, ledger: Ledger, watchman: Watchman) -> None:
    """Everything accepted is over, nothing is repeated, nothing is lost, and the books balance."""
    await watchman.sweep_once(Environment.system())
    assert watchman.broken == [], watchman.broken[:20]
    assert watchman.looks > 0
    for log in place.fleet.logs():
        for line in log.splitlines():
            assert not any(alarm in line for alarm in _ALARMS), line
    assert ledger.accepted
    assert set(ledger.receipts) == set(ledger.accepted)
    # A run may fail when it is killed before any output again and again, or whatever it does.
    assert set(ledger.outcomes) <= {"completed", "failed"}, ledger.outcomes
    assert set(ledger.failures.values()) <= {"provider_error", "crash_loop"}, ledger.failures
    _judge_tools(place, ledger)
    transcripts: dict[str, list[dict[str, Any]]] = {}
    for session, user in ledger.owners.items():
        transcripts[session] = await user.entries(session)
        judge_transcript(transcripts[session], given_up=_given_up(ledger, session))
    _judge_words(ledger, transcripts)
    await _judge_books(place, transcripts)
    for query in ("open_work", "left_values"):
        left = await asyncio.to_thread(place.fleet.rows, QUERIES[query])
        assert left == [], (query, left[:20])


def _given_up(ledger: Ledger, session: str) -> int:
    """How many of a session's operations were ended because their hosts kept dying: each may have
    been in the middle of a tool."""
    return sum(
        code == "crash_loop" and ledger.accepted[operation].session == session
        for operation, code in ledger.failures.items()
    )


def _judge_tools(place: Stage, ledger: Ledger) -> None:
    notes = place.fleet.all_notes("start")
    for operation, asked in ledger.accepted.items():
        starts = notes.get(operation, [])
        assert len(set(starts)) <= 1, "one call, one invocation"
        if asked.kind == "slow_never":
            assert len(starts) <= 1, f"{operation}: a tool that may not be repeated ran twice"


def _judge_words(ledger: Ledger, transcripts: dict[str, list[dict[str, Any]]]) -> None:
    """Each prompt stands once in the transcript, and each steer that was accepted; no other does,
    whoever died or came late with it."""
    spoken: dict[str, Counter[str]] = {
        session: Counter(_said(entry) for entry in entries if _role(entry) == "user")
        for session, entries in transcripts.items()
    }
    prompts = {
        session: sum(number for text, number in said.items() if text.startswith(("echo:", "tool:")))
        for session, said in spoken.items()
    }
    asked = Counter(each.session for each in ledger.accepted.values())
    assert prompts == {session: asked[session] for session in transcripts}, (prompts, asked)
    for text, (operation, fate) in ledger.steers.items():
        times = spoken[ledger.accepted[operation].session][text]
        wanted = {"accepted": (1,), "refused": (0,)}[fate]
        if ledger.failures.get(operation) == "crash_loop":
            wanted = (0, 1)
        assert times in wanted, f"{text}: {fate}, and {times} times in the transcript"


async def _judge_books(place: Stage, transcripts: dict[str, list[dict[str, Any]]]) -> None:
    """The ledger is what the model server counted, less what the transcripts say was cut off."""
    counted = {each.input: each for each in place.model.counted.values()}
    billed: Counter[int] = Counter()
    by_session: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for session, tokens_in, tokens_out in await asyncio.to_thread(
        place.fleet.rows, QUERIES["ledger"]
    ):
        total_in, total_out = by_session[session]
        by_session[session] = (total_in + tokens_in, total_out + tokens_out)
        if tokens_in == 0:
            continue  # an attempt whose end nobody heard
        billed[tokens_in] += 1
        assert tokens_out == counted[tokens_in].output, counted[tokens_in]
    assert not [tokens for tokens, times in billed.items() if times > 1], "billed twice"
    unheard = sum(
        _role(entry) == "assistant" and entry["message"]["stopReason"] == "error"
        for entries in transcripts.values()
        for entry in entries
    )
    missing = set(counted) - set(billed)
    assert len(missing) <= unheard, f"{len(missing)} not billed, {unheard} said to be cut off"
    heard = sum(tokens_in for tokens_in, _ in by_session.values())
    assert heard == sum(counted) - sum(missing), "the ledger does not balance"
    for session, tokens_in, tokens_out, messages, stored in await asyncio.to_thread(
        place.fleet.rows, QUERIES["totals"]
    ):
        assert (tokens_in, tokens_out) == by_session[session], session
        assert messages == stored, session


def _role(entry: dict[str, Any]) -> str | None:
    return entry.get("message", {}).get("role")


def _said(entry: dict[str, Any]) -> str:
    content = entry["message"]["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
