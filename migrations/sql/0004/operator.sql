-- What operators ask of the fleet and order it to do. The functions that run as their owner see all
-- tenants; none of them shows what was said in a session.

-- An operator's order to leave. The host reads it with its next heartbeat and drains as after SIGTERM.
ALTER TABLE laneway.hosts ADD COLUMN told_to_leave boolean NOT NULL DEFAULT false;

-- Where an open operation stands. driver: the worker that owns its session, if one does.
CREATE FUNCTION laneway.work_state(due_at bigint, driver uuid, now_ms bigint)
RETURNS text
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT CASE WHEN due_at > now_ms THEN 'scheduled'
                WHEN driver IS NOT NULL THEN 'driven'
                ELSE 'waiting' END
$$;

-- How many open operations are in each state, by class of tenant ("class" in its limits), and since
-- when the oldest of them is due.
CREATE FUNCTION laneway.fleet_work(now_ms bigint)
RETURNS TABLE (tenant_class text, state text, number bigint, oldest_due bigint)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT left(coalesce(t.limits ->> 'class', 'default'), 40),
           laneway.work_state(o.due_at, h.id, now_ms), count(*), min(o.due_at)
    FROM laneway.open_operations AS o
    LEFT JOIN laneway.tenants AS t ON t.id = o.tenant_id
    LEFT JOIN laneway.sessions AS s ON s.id = o.session_id
    LEFT JOIN laneway.hosts AS h ON h.id = s.owner_host AND h.role = 'worker'
    GROUP BY 1, 2
    ORDER BY 1, 2
$$;

-- One operation of whichever tenant, open or done.
CREATE FUNCTION laneway.operator_operation(for_operation uuid, now_ms bigint)
RETURNS TABLE (
    operation_id uuid, tenant_id uuid, tenant text, session_id uuid, lane text, kind text, state text,
    accepted_at bigint, due_at bigint, dispatched_at bigint, passes integer, last_reason text,
    host_id uuid, host text, outcome text, error text, finished_at bigint
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.id, r.tenant_id, t.name, r.session_id, r.lane, r.kind,
           CASE WHEN r.status = 'done' THEN 'done'
                WHEN o.operation_id IS NULL THEN 'lost'
                ELSE laneway.work_state(o.due_at, w.id, now_ms) END,
           r.accepted_at, o.due_at, o.dispatched_at, o.passes, o.last_reason,
           h.id, h.name, r.outcome, r.error, r.finished_at
    FROM laneway.operations AS r
    LEFT JOIN laneway.tenants AS t ON t.id = r.tenant_id
    LEFT JOIN laneway.open_operations AS o ON o.operation_id = r.id
    LEFT JOIN laneway.sessions AS s ON s.id = o.session_id
    LEFT JOIN laneway.hosts AS h ON h.id = s.owner_host
    LEFT JOIN laneway.hosts AS w ON w.id = s.owner_host AND w.role = 'worker'
    WHERE r.id = for_operation
$$;

-- Open operations, those accepted first first; of one tenant, in one state, accepted before an
-- instant, where these are not null.
CREATE FUNCTION laneway.operator_operations(
    for_tenant uuid, in_state text, accepted_before bigint, at_most integer, now_ms bigint
) RETURNS TABLE (
    operation_id uuid, tenant_id uuid, tenant text, session_id uuid, lane text, kind text, state text,
    accepted_at bigint, due_at bigint, dispatched_at bigint, passes integer, last_reason text,
    host_id uuid, host text
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.operation_id, o.tenant_id, t.name, o.session_id, o.lane, o.kind, v.state,
           o.accepted_at, o.due_at, o.dispatched_at, o.passes, o.last_reason, h.id, h.name
    FROM laneway.open_operations AS o
    LEFT JOIN laneway.tenants AS t ON t.id = o.tenant_id
    LEFT JOIN laneway.sessions AS s ON s.id = o.session_id
    LEFT JOIN laneway.hosts AS h ON h.id = s.owner_host
    LEFT JOIN laneway.hosts AS w ON w.id = s.owner_host AND w.role = 'worker'
    CROSS JOIN LATERAL (SELECT laneway.work_state(o.due_at, w.id, now_ms) AS state) AS v
    WHERE (for_tenant IS NULL OR o.tenant_id = for_tenant)
      AND (in_state IS NULL OR v.state = in_state)
      AND (accepted_before IS NULL OR o.accepted_at < accepted_before)
    ORDER BY o.accepted_at, o.operation_id
    LIMIT at_most
$$;

-- Removes receipts of operations that ended before an instant, at_most of them; returns how many. An
-- index by tenant and acceptance leads to them: nothing ends before it was accepted.
CREATE FUNCTION laneway.purge_receipts(ended_before bigint, at_most integer)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM laneway.operations AS r
    WHERE r.id = ANY (ARRAY(
        SELECT old.id
        FROM laneway.tenants AS t
        CROSS JOIN LATERAL (
            SELECT o.id FROM laneway.operations AS o
            WHERE o.tenant_id = t.id AND o.accepted_at < ended_before
              AND o.status = 'done' AND o.finished_at < ended_before
            ORDER BY o.accepted_at
            LIMIT at_most
        ) AS old
        LIMIT at_most));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- Removes idempotency keys that expired before an instant, at_most of them; returns how many. A key that
-- a request takes over at this moment is left to it.
CREATE FUNCTION laneway.purge_keys(expired_before bigint, at_most integer)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM laneway.idempotency_keys AS k
    USING (
        SELECT o.tenant_id, o.key FROM laneway.idempotency_keys AS o
        WHERE o.expires_at < expired_before
        ORDER BY o.expires_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE k.tenant_id = old.tenant_id AND k.key = old.key AND k.expires_at < expired_before;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- Has an operation that is due dispatched again at once, whatever became of its job.
CREATE FUNCTION laneway.undispatch(for_tenant uuid, for_operation uuid)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    UPDATE laneway.open_operations AS o SET dispatched_at = NULL
    WHERE o.operation_id = for_operation;
    RETURN FOUND;
END
$$;

-- How many sessions a host is on record as owner of.
CREATE FUNCTION laneway.sessions_of_host(for_host uuid)
RETURNS bigint
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT count(*) FROM laneway.sessions AS s WHERE s.owner_host = for_host
$$;
