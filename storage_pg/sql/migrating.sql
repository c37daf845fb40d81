-- Bringing a claimed session to another storage version, in transactions that have named their tenant.

-- name: lock_claimed
-- The session's row, under the claim that the caller has; no row: it has it no longer.
SELECT storage_version FROM laneway.sessions WHERE id = %s::uuid AND fence = %s FOR UPDATE

-- name: write_storage_version
UPDATE laneway.sessions SET storage_version = %s WHERE id = %s::uuid

-- name: migrating_values
SELECT seq, namespace, key, value FROM laneway.scalar_values WHERE session_id = %s::uuid ORDER BY seq

-- name: migrating_elements
-- One page of the elements of all lists.
SELECT seq, namespace, key, value FROM laneway.list_values
WHERE session_id = %s::uuid AND seq > %s ORDER BY seq LIMIT %s

-- name: migrating_drop_value
DELETE FROM laneway.scalar_values
WHERE session_id = %s::uuid AND namespace = %s AND key = %s AND seq = %s

-- name: migrating_drop_element
DELETE FROM laneway.list_values
WHERE session_id = %s::uuid AND namespace = %s AND key = %s AND seq = %s

-- name: migrating_control
SELECT namespaces, keys, seqs, contents FROM laneway.control_values(%s::uuid)

-- name: migrating_due
-- When an operation must be looked at, by the state that it has now: at this instant exactly, or at
-- the latest then.
UPDATE laneway.open_operations SET due_at = %(instant)s
WHERE operation_id = %(operation)s::uuid AND session_id = %(session)s::uuid
  AND (due_at > %(instant)s OR (%(exact)s AND due_at < %(instant)s))
