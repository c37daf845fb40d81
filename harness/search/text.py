"""What of a conversation can be found, and how text is cut into terms: the same for every index.

A term is a run of letters and digits, folded: without case, accents and compatibility forms.
Scripts that put no spaces between words (Chinese, Japanese, Thai and the like) give one term per
character, and what a searcher writes without a space stays together: `foo-bar`, `config.py` and a
Chinese word are phrases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from harness.codec import valid_unicode
from harness.entries import BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry
from harness.messages import (
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    TextContent,
    ToolResultMessage,
    UserMessage,
)

MAX_TERMS = 16_000
MAX_TERM_LENGTH = 64
MAX_PHRASES = 32
_MAX_WORD = 1_000

_WORDS = re.compile(r"[^\W_]+")
# Scripts without spaces between words: Thai to Myanmar, Khmer, kana, Han and their extensions.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_QUERY = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Term:
    """A folded term and where it stands in the text it came from."""

    text: str
    start: int
    end: int


def terms_of(text: str) -> Iterator[Term]:
    """The terms of some text, in order."""
    for match in _WORDS.finditer(text):
        start, end = match.span()
        word = match.group()
        if word.isascii():
            yield Term(word[:MAX_TERM_LENGTH].lower(), start, end)
            continue
        last = start
        for single in _UNSPACED.finditer(text, start, end):
            if single.start() > last:
                yield from _term(text, last, single.start())
            yield from _term(text, single.start(), single.end())
            last = single.end()
        if last < end:
            yield from _term(text, last, end)


def _term(text: str, start: int, end: int) -> Iterator[Term]:
    # Folding can lengthen a character eighteenfold: cut before as well as after.
    decomposed = unicodedata.normalize("NFKD", text[start : min(end, start + MAX_TERM_LENGTH)])
    folded = "".join(char for char in decomposed.casefold() if char.isalnum())
    if folded:
        yield Term(folded[:MAX_TERM_LENGTH], start, end)


def searchable(text: str) -> str:
    """The text as an index keeps it: composed, valid Unicode, without NUL, as far as its terms count."""
    clean = unicodedata.normalize("NFC", valid_unicode(text)).replace("\x00", " ").strip()
    if len(clean) < MAX_TERMS:
        return clean
    end = 0
    for count, term in enumerate(terms_of(clean), start=1):
        end = min(term.end, term.start + _MAX_WORD)
        if count == MAX_TERMS:
            break
    return clean[:end]


def entry_text(entry: Entry) -> str:
    """What can be found of an entry: what was said, shown or summarized; empty when there is nothing.

    Reasoning, tool arguments and custom data are not part of it, nor messages that are not displayed.
    """
    match entry:
        case MessageEntry(message=message):
            match message:
                case UserMessage(content=content) | CustomMessage(content=content, display=True):
                    parts = (content,) if isinstance(content, str) else _texts(content)
                case AssistantMessage(content=content) | ToolResultMessage(content=content):
                    parts = _texts(content)
                case CustomMessage():
                    parts = ()
                case CompactionSummaryMessage() | BranchSummaryMessage():
                    parts = (message.summary,)
        case CompactionEntry(summary=summary) | BranchSummaryEntry(summary=summary):
            parts = (summary,)
        case CustomEntry():
            parts = ()
    return searchable("\n".join(parts))


def _texts(content: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(part.text for part in content if isinstance(part, TextContent))


@dataclass(frozen=True, slots=True)
class Phrase:
    """Terms that must follow each other; with `prefix` the last one is only the beginning of a term."""

    terms: tuple[str, ...]
    prefix: bool = False


def parse_query(text: str) -> tuple[Phrase, ...]:
    """What somebody typed: everything must occur. `"in quotes"` is a phrase, `word*` a prefix.

    There is no syntax that could be wrong; signs that mean nothing are passed over, and so is what
    comes after `MAX_PHRASES` words or phrases.
    """
    phrases: dict[Phrase, None] = {}
    clean = unicodedata.normalize("NFC", valid_unicode(text))
    for match in _QUERY.finditer(clean):
        quoted, word = match.groups()
        source = word if quoted is None else quoted
        found = tuple(term.text for term in islice(terms_of(source), MAX_TERM_LENGTH))
        if found:
            phrases[Phrase(found, prefix=word is not None and word.endswith("*"))] = None
        if len(phrases) == MAX_PHRASES:
            break
    return tuple(phrases)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of an entry's text. `highlights` are (start, end) positions in it of what was found."""

    text: str
    highlights: tuple[tuple[int, int], ...]


def make_snippet(text: str, query: tuple[Phrase, ...], length: int = 200) -> Snippet:
    """The piece around the first place where most of the query stands close together."""
    wanted = {term for phrase in query for term in phrase.terms}
    prefixes = tuple(phrase.terms[-1] for phrase in query if phrase.prefix)
    found: list[Term] = []
    for term in terms_of(text):
        if term.text in wanted or (prefixes and term.text.startswith(prefixes)):
            found.append(term)
            if len(found) >= _ENOUGH:
                break
    start = _best_start(found, length)
    begin, end = _cut(text, start, length)
    marks = tuple(
        (term.start - begin + (begin > 0), min(term.end, end) - begin + (begin > 0))
        for term in found
        if begin <= term.start < end
    )
    piece = ("…" if begin > 0 else "") + text[begin:end] + ("…" if end < len(text) else "")
    return Snippet(piece, marks)


# Places looked at; a long text that is full of the words needs no more to choose from.
_ENOUGH = 200


def _best_start(found: list[Term], length: int) -> int:
    """Where the window with the most different terms begins; the earliest of equals."""
    best, best_start = 0, 0
    for index, first in enumerate(found):
        inside = {
            term.text for term in found[index : index + 20] if term.end - first.start <= length
        }
        if len(inside) > best:
            best, best_start = len(inside), first.start
    return best_start


def _cut(text: str, start: int, length: int) -> tuple[int, int]:
    """A window of at most `length` characters that shows a little before `start` and cuts no word."""
    if len(text) <= length:
        return 0, len(text)
    begin = max(0, min(start - length // 5, len(text) - length))
    end = begin + length
    if begin > 0:
        space = text.find(" ", begin, start)
        begin = begin if space < 0 else space + 1
    if end < len(text):
        space = text.rfind(" ", start + length // 2, end)
        end = end if space < 0 else space
    return begin, end
