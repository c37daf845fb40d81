-- The scheduler's statements. They see all tenants through functions that run as their owner.

-- name: dispatch_due
SELECT operation_id::text, tenant_id::text, session_id::text, lane, due_at
FROM laneway.dispatch_due(%s::bigint, %s::bigint, %s::integer, %s::integer)

-- name: outlook
SELECT next_due, backlog FROM laneway.outlook(%s::bigint)

-- name: begin_drive
SELECT admitted, suspected, passes, last_reason
FROM laneway.begin_drive(
    %s::uuid, %s::uuid, %s::uuid, %s::uuid, %s::integer, %s::text, %s::boolean
)

-- name: end_drive
SELECT laneway.end_drive(%s::uuid, %s::uuid, %s::uuid, %s::uuid, %s::boolean, %s::text)

-- name: open_of_session
SELECT operation_id::text, lane, kind, due_at FROM laneway.open_of_session(%s::uuid, %s::uuid)

-- name: hopeless
SELECT tenant_id::text, session_id::text, passes, last_reason,
       operation_id::text, lane, kind, due_at
FROM laneway.hopeless(%s::integer)

-- name: count_unopened
SELECT laneway.count_unopened(%s::uuid, %s::uuid, %s::uuid, %s::text)

-- name: end_unopened
SELECT laneway.end_unopened(
    %s::uuid, %s::uuid, %s::uuid, %s::bigint, %s::text, %s::text, %s::text, %s::text, %s::bigint
)

-- name: sweep_page
SELECT operation_id, tenant_id::text, session_id::text, state_seq, state, meta, has_row, due_at
FROM laneway.sweep_page(%s::text, %s::integer)

-- name: repair_open_operation
SELECT laneway.repair_open_operation(
    %s::uuid, %s::uuid, %s::uuid, %s::bigint, %s::bigint, %s::text, %s::text, %s::bigint
)

-- name: owner_of
-- Who owns a session, for forwarding: no row when nobody does.
SELECT host_id::text, role, url FROM laneway.owner_of(%s::uuid, %s::uuid)
