-- The search index (see migrations/sql/0002/search.sql). All but the sweep run in a transaction that
-- has named its tenant.

-- name: search_entries
-- The best entries. The tenant's newest matches are ranked, or, with a session, all of that session's
-- (within: only these entries). score, time, entry and of_session say after which hit to begin, or are
-- null. Texts are fetched for the result only.
WITH matched AS MATERIALIZED (
    SELECT m.session_id, m.entry_id, m.created_at, m.score
    FROM laneway.search_matches(
        %(tenant)s::uuid, %(wanted)s::tsquery, %(types)s::text[], %(labels)s::text[], %(most)s
    ) AS m
    WHERE %(session)s::uuid IS NULL
    UNION ALL
    SELECT e.session_id, e.entry_id, e.created_at, ts_rank(e.terms, %(wanted)s::tsquery, 1)
    FROM laneway.search_entries AS e
    WHERE e.session_id = %(session)s::uuid AND e.terms @@ %(wanted)s::tsquery
      AND (%(types)s::text[] IS NULL OR e.type = ANY (%(types)s::text[]))
      AND (%(within)s::uuid[] IS NULL OR e.entry_id = ANY (%(within)s::uuid[]))
      AND (%(labels)s::text[] IS NULL OR EXISTS (
          SELECT 1 FROM laneway.search_sessions AS s
          WHERE s.session_id = e.session_id AND s.labels @> %(labels)s::text[]))
), best AS MATERIALIZED (
    SELECT m.* FROM matched AS m
    WHERE %(score)s::real IS NULL
       OR (m.score, m.created_at, m.entry_id, m.session_id)
          < (%(score)s::real, %(time)s::bigint, %(entry)s::uuid, %(of_session)s::uuid)
    ORDER BY m.score DESC, m.created_at DESC, m.entry_id DESC, m.session_id DESC
    LIMIT %(limit)s
)
SELECT e.session_id::text, e.entry_id::text, e.type, e.created_at, b.score, e.body
FROM best AS b
JOIN laneway.search_entries AS e ON e.session_id = b.session_id AND e.entry_id = b.entry_id
ORDER BY b.score DESC, b.created_at DESC, b.entry_id DESC, b.session_id DESC

-- name: search_sessions
-- The best entry of each of the best sessions, and how many match there. Parameters as above.
WITH matched AS MATERIALIZED (
    SELECT m.session_id, m.entry_id, m.created_at, m.score
    FROM laneway.search_matches(
        %(tenant)s::uuid, %(wanted)s::tsquery, %(types)s::text[], %(labels)s::text[], %(most)s
    ) AS m
    WHERE %(session)s::uuid IS NULL
    UNION ALL
    SELECT e.session_id, e.entry_id, e.created_at, ts_rank(e.terms, %(wanted)s::tsquery, 1)
    FROM laneway.search_entries AS e
    WHERE e.session_id = %(session)s::uuid AND e.terms @@ %(wanted)s::tsquery
      AND (%(types)s::text[] IS NULL OR e.type = ANY (%(types)s::text[]))
      AND (%(within)s::uuid[] IS NULL OR e.entry_id = ANY (%(within)s::uuid[]))
      AND (%(labels)s::text[] IS NULL OR EXISTS (
          SELECT 1 FROM laneway.search_sessions AS s
          WHERE s.session_id = e.session_id AND s.labels @> %(labels)s::text[]))
), placed AS MATERIALIZED (
    SELECT m.session_id, m.entry_id, m.created_at, m.score,
           row_number() OVER (
               PARTITION BY m.session_id ORDER BY m.score DESC, m.created_at DESC, m.entry_id DESC
           ) AS place,
           count(*) OVER (PARTITION BY m.session_id) AS matches
    FROM matched AS m
), best AS MATERIALIZED (
    SELECT p.session_id, p.entry_id, p.created_at, p.score, p.matches
    FROM placed AS p
    WHERE p.place = 1
      AND (%(score)s::real IS NULL
           OR (p.score, p.created_at, p.entry_id, p.session_id)
              < (%(score)s::real, %(time)s::bigint, %(entry)s::uuid, %(of_session)s::uuid))
    ORDER BY p.score DESC, p.created_at DESC, p.entry_id DESC, p.session_id DESC
    LIMIT %(limit)s
)
SELECT e.session_id::text, e.entry_id::text, e.type, e.created_at, b.score, e.body, b.matches
FROM best AS b
JOIN laneway.search_entries AS e ON e.session_id = b.session_id AND e.entry_id = b.entry_id
ORDER BY b.score DESC, b.created_at DESC, b.entry_id DESC, b.session_id DESC

-- name: search_positions
SELECT session_id::text, created_at, generation, cursor, stamp, labels
FROM laneway.search_sessions WHERE session_id = ANY (%s::uuid[])

-- name: search_lock
SELECT laneway.search_lock(%s::uuid)

-- name: search_store
-- Which store a session has now. The share of its key keeps it from being deleted meanwhile and
-- hinders no commit.
SELECT created_at, store_generation FROM laneway.sessions WHERE id = %s::uuid FOR KEY SHARE

-- name: search_forget
SELECT laneway.search_forget(%s::uuid)

-- name: search_add
-- Within one store an entry never changes: what is there already stays.
INSERT INTO laneway.search_entries
    (session_id, entry_id, tenant_id, created_at, type, body, terms)
SELECT %(session)s::uuid, d.entry_id, %(tenant)s::uuid, d.created_at, d.type, d.body,
       d.terms::tsvector
FROM unnest(
    %(entries)s::uuid[], %(times)s::bigint[], %(types)s::text[], %(bodies)s::text[],
    %(terms)s::text[]
) AS d (entry_id, created_at, type, body, terms)
ON CONFLICT (session_id, entry_id) DO NOTHING

-- name: search_move
-- The cursor of one store never goes back; the caller has removed the rows of another store.
INSERT INTO laneway.search_sessions AS s
    (session_id, tenant_id, created_at, generation, cursor, stamp, labels)
VALUES (%(session)s::uuid, %(tenant)s::uuid, %(created_at)s, %(generation)s, %(cursor)s, %(stamp)s,
        %(labels)s::text[])
ON CONFLICT (session_id) DO UPDATE SET
    created_at = excluded.created_at,
    generation = excluded.generation,
    cursor = greatest(s.cursor, excluded.cursor),
    stamp = excluded.stamp,
    labels = excluded.labels

-- name: search_known
SELECT session_id::text FROM laneway.search_sessions
WHERE tenant_id = %(tenant)s::uuid
  AND (%(after)s::uuid IS NULL OR session_id > %(after)s::uuid)
ORDER BY session_id LIMIT %(limit)s

-- name: search_listing
-- One page of a tenant's sessions with their stamps, or one session.
SELECT s.id::text, s.created_at, s.cwd, s.parent_session_id::text, s.legacy_parent_session_path,
       s.storage_version, s.store_generation, s.metadata, laneway.search_stamp(s)
FROM laneway.sessions AS s
WHERE s.tenant_id = %(tenant)s::uuid
  AND (%(only)s::uuid IS NULL OR s.id = %(only)s::uuid)
  AND (%(after)s::uuid IS NULL OR (s.created_at, s.id) > (%(after_time)s, %(after)s::uuid))
ORDER BY s.created_at, s.id LIMIT %(limit)s

-- name: search_stale
SELECT tenant_id::text, session_id::text
FROM laneway.search_stale(%s::text, %s::uuid, %s::integer)
