"""How text is cut into terms, what of an entry counts, and snippets."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from harness.search.text import (
    MAX_PHRASES,
    MAX_TERM_LENGTH,
    MAX_TERMS,
    Phrase,
    make_snippet,
    parse_query,
    searchable,
    terms_of,
)


def words(text: str) -> list[str]:
    return [term.text for term in terms_of(text)]


def test_terms_are_folded_letters_and_digits() -> None:
    assert words("Réservé: the_Auth-Migration, v2!") == [
        "reserve",
        "the",
        "auth",
        "migration",
        "v2",
    ]
    assert words("STRASSE straße ﬁle Ｆｕｌｌ") == ["strasse", "strasse", "file", "full"]
    assert words("認証 migration") == ["認", "証", "migration"]
    assert words("ภาษา") == [char for char in "ภาษา" if char.isalnum()]
    assert words("") == []
    assert words("--- !!! \n") == []


def test_composed_and_decomposed_text_are_the_same() -> None:
    assert words(searchable("e\u0301te\u0301")) == words("été") == ["ete"]


def test_queries_have_no_wrong_syntax() -> None:
    assert parse_query('auth "exact words" mig* a-b') == (
        Phrase(("auth",)),
        Phrase(("exact", "words")),
        Phrase(("mig",), prefix=True),
        Phrase(("a", "b")),
    )
    assert parse_query('"open quote') == (Phrase(("open", "quote")),)
    assert parse_query('* "" - NEAR( AND') == (Phrase(("near",)), Phrase(("and",)))
    assert parse_query("same Same SAME") == (Phrase(("same",)),)
    assert len(parse_query(" ".join(f"w{n}" for n in range(1_000)))) == MAX_PHRASES


@given(st.text())
def test_any_query_can_be_parsed(text: str) -> None:
    for phrase in parse_query(text):
        assert phrase.terms
        assert all(term.isalnum() and len(term) <= MAX_TERM_LENGTH for term in phrase.terms)


@given(st.text(alphabet=st.characters(codec=None)))
def test_searchable_text_can_be_stored_anywhere(text: str) -> None:
    kept = searchable(text)
    assert "\x00" not in kept
    kept.encode("utf-8")
    assert searchable(kept) == kept


def test_text_is_kept_as_far_as_it_is_indexed() -> None:
    kept = searchable("word " * (MAX_TERMS + 10))
    assert len(words(kept)) == MAX_TERMS
    assert len(searchable("x" * 1_000_000)) <= 1_000
    assert words("y" * 500) == ["y" * MAX_TERM_LENGTH]


def marked(text: str, query: str, length: int = 200) -> tuple[str, list[str]]:
    snippet = make_snippet(text, parse_query(query), length)
    return snippet.text, [snippet.text[start:end] for start, end in snippet.highlights]


def test_a_snippet_marks_what_was_found() -> None:
    assert marked("Move the Auth service.", "auth mov*") == (
        "Move the Auth service.",
        ["Move", "Auth"],
    )
    assert marked("nothing here", "else") == ("nothing here", [])


def test_a_snippet_shows_where_the_query_stands_together() -> None:
    text = "auth " + "padding " * 200 + "the auth migration is done " + "padding " * 200
    piece, marks = marked(text, "auth migration", 80)
    assert piece.startswith("…")
    assert piece.endswith("…")
    assert len(piece) <= 82
    assert marks == ["auth", "migration"]


@given(
    st.text(alphabet=string.ascii_lowercase[:3] + " é認…\n", max_size=300),
    st.text(alphabet=string.ascii_lowercase[:3] + " 認*", min_size=1, max_size=10),
    st.integers(min_value=1, max_value=60),
)
def test_highlights_lie_inside_the_snippet(text: str, query: str, length: int) -> None:
    snippet = make_snippet(text, parse_query(query), length)
    assert len(snippet.text) <= length + 2
    for start, end in snippet.highlights:
        assert 0 <= start < end <= len(snippet.text)
