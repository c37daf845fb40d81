"""Frames that were answered before they were sent: they go with the next document of their session."""

from __future__ import annotations

from storage_pg.documents import Document

# Beyond this many bytes whoever writes more waits as for any other commit. What a document takes beside
# its texts counts too: it is most of what small frames take.
_MOST_BYTES = 1024 * 1024
_DOCUMENT_BYTES = 800


class Behind:
    """What waits, in order, and the sequence number that the next write will have.

    A stream's frames come faster than a database writes them down one by one. Losing the newest is
    legal (§3.7), so nobody waits for them: while a document of the session is under way they gather
    here, and the next one takes all of them along. The more there is to do, the fewer commits it
    takes; with little to do, each frame is sent at once.
    """

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq
        self._waiting: list[Document] = []
        self._bytes = 0

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return self._bytes >= _MOST_BYTES

    def promise(self, writes: int) -> int:
        """The sequence number of the first of so many writes."""
        first_seq, self.next_seq = self.next_seq, self.next_seq + writes
        return first_seq

    def add(self, document: Document) -> int:
        """Keep a document of frames for later; returns its first sequence number."""
        self._waiting.append(document)
        self._bytes += _DOCUMENT_BYTES + document.size
        return self.promise(document.writes)

    def precede(self, document: Document) -> list[Document]:
        """Put all that waits before a document that is about to be sent; returns what that was."""
        taken, self._waiting = self._waiting, []
        self._bytes = 0
        document.follow(taken)
        return taken

    def restore(self, taken: list[Document], next_seq: int) -> None:
        """The document was refused and nothing of it applied: what preceded it waits again, and the
        session stands at `next_seq`."""
        self._waiting = taken + self._waiting
        self._bytes = sum(_DOCUMENT_BYTES + document.size for document in self._waiting)
        self.next_seq = next_seq + sum(document.writes for document in self._waiting)
