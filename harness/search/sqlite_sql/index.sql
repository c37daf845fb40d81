-- The search index: documents with their text, the full-text table over their terms, and for each
-- session how far it is indexed and what metadata it can be filtered by. All of it can be rebuilt.

-- name: create_sessions
-- One row per known session. `cursor` is the highest entry sequence number held; `stamp` is the
-- source's word for its state when indexing was complete; labels is a JSON array.
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    created_at INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    stamp TEXT,
    labels TEXT NOT NULL
) WITHOUT ROWID

-- name: create_labels
-- The sessions that carry a metadata label.
CREATE TABLE labels (
    label TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (label, session_id)
) WITHOUT ROWID

-- name: create_labels_of_session
CREATE INDEX ix_labels_session ON labels (session_id)

-- name: create_documents
-- The text of one entry, for snippets. `id` is also the row of its terms.
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    entry_id TEXT NOT NULL,
    type TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (session_id, entry_id)
)

-- name: create_terms
-- Folded terms separated by spaces. The tokenizer splits at spaces and changes nothing else.
CREATE VIRTUAL TABLE terms USING fts5 (words, tokenize = 'ascii')

-- name: read_version
PRAGMA user_version

-- name: write_version
-- The layout of this file.
PRAGMA user_version = 1

-- name: tables
-- What a file consists of, to tell an empty one from somebody else's.
SELECT name FROM sqlite_master WHERE type = 'table'

-- name: read_position
SELECT created_at, generation, cursor, stamp, labels FROM sessions WHERE session_id = ?

-- name: read_positions
-- Of the sessions in a JSON array.
SELECT s.session_id, s.created_at, s.generation, s.cursor, s.stamp, s.labels
FROM json_each(?) AS wanted JOIN sessions AS s ON s.session_id = wanted.value

-- name: write_position
-- The cursor of one store never goes back; the caller has removed the rows of another store.
INSERT INTO sessions (session_id, created_at, generation, cursor, stamp, labels)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (session_id) DO UPDATE SET
    created_at = excluded.created_at,
    generation = excluded.generation,
    cursor = max(cursor, excluded.cursor),
    stamp = excluded.stamp,
    labels = excluded.labels

-- name: insert_document
-- No row when it is there already: within one store an entry never changes.
INSERT INTO documents (session_id, entry_id, type, timestamp, text) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (session_id, entry_id) DO NOTHING
RETURNING id

-- name: insert_terms
INSERT INTO terms (rowid, words) VALUES (?, ?)

-- name: insert_label
INSERT INTO labels (label, session_id) VALUES (?, ?)

-- name: delete_labels
DELETE FROM labels WHERE session_id = ?

-- name: delete_terms
DELETE FROM terms WHERE rowid IN (SELECT id FROM documents WHERE session_id = ?)

-- name: delete_documents
DELETE FROM documents WHERE session_id = ?

-- name: delete_position
DELETE FROM sessions WHERE session_id = ?

-- name: session_page
SELECT session_id FROM sessions WHERE session_id > ? ORDER BY session_id LIMIT ?

-- name: merge_terms
-- Merges the full-text segments into one, without what was deleted from them.
INSERT INTO terms (terms) VALUES ('optimize')

-- name: search_entries
-- The best documents. :labels is a JSON array of which a session must have all (:label_count of
-- them); :types a JSON array of entry types or null; :session a session or null; :within a JSON array
-- of entries or null. :score, :time, :entry and :of_session say after which hit to begin, or are null.
-- Texts are fetched for the result only.
WITH hits AS MATERIALIZED (
    SELECT rowid AS id, -bm25(terms) AS score FROM terms WHERE terms MATCH :match
), best AS MATERIALIZED (
    SELECT d.id, h.score, d.timestamp, d.entry_id, d.session_id
    FROM hits AS h JOIN documents AS d ON d.id = h.id
    WHERE (:types IS NULL OR d.type IN (SELECT value FROM json_each(:types)))
      AND (:session IS NULL OR d.session_id = :session)
      AND (:within IS NULL OR d.entry_id IN (SELECT value FROM json_each(:within)))
      AND (:label_count = 0 OR d.session_id IN (
          SELECT session_id FROM labels WHERE label IN (SELECT value FROM json_each(:labels))
          GROUP BY session_id HAVING count(*) = :label_count))
      AND (:score IS NULL
           OR (h.score, d.timestamp, d.entry_id, d.session_id) < (:score, :time, :entry, :of_session))
    ORDER BY h.score DESC, d.timestamp DESC, d.entry_id DESC, d.session_id DESC
    LIMIT :limit
)
SELECT d.session_id, d.entry_id, d.type, d.timestamp, b.score, d.text
FROM best AS b JOIN documents AS d ON d.id = b.id
ORDER BY b.score DESC, b.timestamp DESC, b.entry_id DESC, b.session_id DESC

-- name: search_sessions
-- The best document of each of the best sessions, and how many match there. Parameters as above.
WITH hits AS MATERIALIZED (
    SELECT rowid AS id, -bm25(terms) AS score FROM terms WHERE terms MATCH :match
), placed AS MATERIALIZED (
    SELECT d.id, h.score, d.timestamp, d.entry_id, d.session_id,
           row_number() OVER (
               PARTITION BY d.session_id ORDER BY h.score DESC, d.timestamp DESC, d.entry_id DESC
           ) AS place,
           count(*) OVER (PARTITION BY d.session_id) AS matches
    FROM hits AS h JOIN documents AS d ON d.id = h.id
    WHERE (:types IS NULL OR d.type IN (SELECT value FROM json_each(:types)))
      AND (:session IS NULL OR d.session_id = :session)
      AND (:within IS NULL OR d.entry_id IN (SELECT value FROM json_each(:within)))
      AND (:label_count = 0 OR d.session_id IN (
          SELECT session_id FROM labels WHERE label IN (SELECT value FROM json_each(:labels))
          GROUP BY session_id HAVING count(*) = :label_count))
), best AS MATERIALIZED (
    SELECT id, score, timestamp, entry_id, session_id, matches FROM placed
    WHERE place = 1
      AND (:score IS NULL
           OR (score, timestamp, entry_id, session_id) < (:score, :time, :entry, :of_session))
    ORDER BY score DESC, timestamp DESC, entry_id DESC, session_id DESC
    LIMIT :limit
)
SELECT d.session_id, d.entry_id, d.type, d.timestamp, b.score, d.text, b.matches
FROM best AS b JOIN documents AS d ON d.id = b.id
ORDER BY b.score DESC, b.timestamp DESC, b.entry_id DESC, b.session_id DESC
