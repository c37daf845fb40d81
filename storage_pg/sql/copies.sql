-- Whole sessions going in and out, in transactions that have named their tenant.

-- name: list_metadata
-- All sessions, or one, oldest first.
SELECT id::text, created_at, cwd, parent_session_id::text, legacy_parent_session_path,
       storage_version, store_generation, metadata
FROM laneway.sessions
WHERE %(only)s::uuid IS NULL OR id = %(only)s::uuid
ORDER BY created_at, id

-- name: copy_session
-- A session's own row.
SELECT created_at, cwd, parent_session_id::text, legacy_parent_session_path, storage_version,
       store_generation, metadata, next_seq, agent
FROM laneway.sessions WHERE id = %s::uuid

-- name: copy_entries
SELECT seq, created_at, id::text, parent_id::text, payload
FROM laneway.entries WHERE session_id = %s::uuid AND seq > %s ORDER BY seq

-- name: copy_path
-- From the root to an entry.
SELECT seq, created_at, id::text, parent_id::text, payload
FROM laneway.scan_branch(%s::uuid, %s::uuid, %s::uuid, NULL, NULL, NULL, NULL, false, NULL, NULL, true)

-- name: copy_values
SELECT seq, namespace, key, value
FROM laneway.scalar_values WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_elements
SELECT seq, namespace, key, value
FROM laneway.list_values WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_usage
SELECT id::text, seq, entry_id::text, adjustment, usage, details
FROM laneway.usage_ledger WHERE session_id = %s::uuid ORDER BY seq

-- name: copy_has_entry
SELECT EXISTS (SELECT 1 FROM laneway.entries WHERE session_id = %s::uuid AND id = %s::uuid)

-- name: restore_session
-- The row of a session that is about to be filled.
INSERT INTO laneway.sessions
    (id, tenant_id, created_at, updated_at, agent, metadata, cwd, parent_session_id,
     legacy_parent_session_path, storage_version, store_generation, next_seq, usage)
VALUES (%(id)s, %(tenant)s, %(created_at)s, %(stamp)s, %(agent)s, %(metadata)s, %(cwd)s,
        %(parent)s, %(legacy_parent)s, %(version)s, %(generation)s, 1, %(usage)s)

-- name: restore_entries
-- One array per column, one element per entry.
SELECT laneway.restore_entries(%s, %s, %s::uuid[], %s::uuid[], %s::bigint[], %s::bigint[],
                               %s::text[], %s::text[], %s::text[])

-- name: restore_usage
INSERT INTO laneway.usage_ledger
    (tenant_id, session_id, id, seq, created_at, entry_id, adjustment, usage, details)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: restore_value
INSERT INTO laneway.scalar_values (tenant_id, session_id, seq, namespace, key, value)
VALUES (%s, %s, %s, %s, %s, %s)

-- name: restore_element
INSERT INTO laneway.list_values (tenant_id, session_id, seq, namespace, key, value)
VALUES (%s, %s, %s, %s, %s, %s)

-- name: restore_operation
-- An operation that was open goes on here: its receipt, and the row that makes somebody drive it.
WITH receipt AS (
    INSERT INTO laneway.operations (id, tenant_id, session_id, lane, kind, status, accepted_at)
    VALUES (%(id)s, %(tenant)s, %(session)s, %(lane)s, %(kind)s, 'open', %(accepted_at)s)
)
INSERT INTO laneway.open_operations
    (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)
VALUES (%(id)s, %(tenant)s, %(session)s, %(lane)s, %(kind)s, %(accepted_at)s, %(due_at)s)

-- name: restore_totals
UPDATE laneway.sessions
SET next_seq = greatest(next_seq, %(next_seq)s), message_count = %(messages)s, usage = %(usage)s,
    name = %(name)s, updated_at = %(stamp)s
WHERE id = %(id)s

-- name: empty_session
SELECT laneway.empty_session(%s::uuid, %s::bigint)

-- name: discard_session
-- A session that nobody has ever claimed.
SELECT laneway.delete_session(%s::uuid, %s::uuid, 0)
