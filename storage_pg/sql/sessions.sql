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
