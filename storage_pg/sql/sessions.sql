-- Sessions as a repository sees them.

-- name: create_session
SELECT laneway.create_session(
    %(tenant)s::uuid, %(id)s::uuid, %(stamp)s::bigint, %(agent)s::text, %(name)s::text,
    %(metadata)s::jsonb, %(cwd)s::text, %(parent)s::uuid, %(legacy_parent)s::text,
    %(version)s::integer, %(usage)s::text, %(namespaces)s::text[], %(keys)s::text[],
    %(contents)s::text[]
)

-- name: delete_session
SELECT laneway.delete_session(%s::uuid, %s::uuid, %s::bigint)

-- name: set_tenant
-- Names the tenant for the rest of the transaction.
SELECT set_config('laneway.tenant', %s, true)

-- name: read_snapshot
-- The transaction sees one instant and writes nothing.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: reserve_key
-- Takes an idempotency key unless it is in use; a key past its expiry is taken over. No row: in use.
-- A second request with the same key waits here for the transaction of the first.
INSERT INTO laneway.idempotency_keys AS k
    (tenant_id, key, fingerprint, status, response, created_at, expires_at)
VALUES (%(tenant)s::uuid, %(key)s, %(fingerprint)s, NULL, NULL, %(now)s, %(expires)s)
ON CONFLICT (tenant_id, key) DO UPDATE SET
    fingerprint = excluded.fingerprint, status = NULL, response = NULL,
    created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE k.expires_at <= excluded.created_at
RETURNING k.key

-- name: kept_answer
SELECT fingerprint, status, response FROM laneway.idempotency_keys
WHERE tenant_id = %s::uuid AND key = %s

-- name: keep_answer
-- A key that was taken for a short time is kept for the answer's.
UPDATE laneway.idempotency_keys
SET status = %s, response = %s, expires_at = greatest(expires_at, created_at + %s)
WHERE tenant_id = %s::uuid AND key = %s

-- name: forget_key
DELETE FROM laneway.idempotency_keys WHERE tenant_id = %s::uuid AND key = %s

-- name: attempt_key
SELECT attempt, fingerprint, status, response
FROM laneway.attempt_key(%s::uuid, %s::text, %s::text, %s::bigint, %s::bigint)

-- name: key_standing
SELECT attempt, status, response FROM laneway.key_standing(%s::uuid, %s::text)
