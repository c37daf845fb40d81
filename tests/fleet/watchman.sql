-- What a superuser sees of owners and work.

-- name: held
-- Advisory locks of this database: who holds which.
SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint
FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())

-- name: alone
-- Operations that are due and whose session has no live worker as owner. A live one is one whose
-- identity lock is held by the backend that it is registered with.
WITH held AS MATERIALIZED (
    SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint AS key
    FROM pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
)
SELECT o.operation_id::text
FROM laneway.open_operations AS o
JOIN laneway.sessions AS s ON s.id = o.session_id
WHERE o.due_at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
  AND NOT EXISTS (
      SELECT 1 FROM laneway.hosts AS h JOIN held ON held.pid = h.lease_pid AND held.key = h.lock_key
      WHERE h.id = s.owner_host AND h.role = 'worker')

-- name: owned
-- Sessions with an owner on record; the last column is its lease backend, null when it is dead.
WITH held AS MATERIALIZED (
    SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint AS key
    FROM pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
)
SELECT s.id::text, s.tenant_id::text, s.fence, s.owner_host::text,
       (SELECT h.lease_pid FROM laneway.hosts AS h
        JOIN held ON held.pid = h.lease_pid AND held.key = h.lock_key
        WHERE h.id = s.owner_host)
FROM laneway.sessions AS s
WHERE s.owner_host IS NOT NULL

-- name: lease_backends
SELECT lease_pid FROM laneway.hosts ORDER BY lease_pid

-- name: cut
SELECT pg_terminate_backend(%s)

-- name: ledger
-- What was billed: tokens in and out of each row of the ledger, by session.
SELECT session_id::text, (usage::json ->> 'input')::bigint, (usage::json ->> 'output')::bigint
FROM laneway.usage_ledger

-- name: totals
-- The maintained totals of each session, and its message entries counted.
SELECT s.id::text, (s.usage::json ->> 'input')::bigint, (s.usage::json ->> 'output')::bigint,
       s.message_count,
       (SELECT count(*) FROM laneway.entries AS e WHERE e.session_id = s.id AND e.type = 'message')
FROM laneway.sessions AS s

-- name: open_work
SELECT operation_id::text FROM laneway.open_operations

-- name: left_values
-- Values that only an open operation owns.
SELECT DISTINCT namespace FROM laneway.scalar_values
WHERE namespace LIKE 'pi.op.%' OR namespace LIKE 'pi.pending.%'
