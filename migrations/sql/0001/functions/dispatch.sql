-- The scheduler's view over all tenants. These run as their owner, which sees all tenants' rows.

-- Chooses operations that wait for a drive (due, and no live worker owns their session), marks them
-- dispatched and returns them. No more than the workers that stay have room for: their capacity, less
-- the due operations of sessions that they own and those dispatched and not yet claimed (without any
-- worker, at_most). Tenants take turns, whoever has least under way first: each gets an equal share, within
-- its limit of concurrent drives ("concurrentDrives" in its limits, else default_limit). What was
-- dispatched more than again_after ms ago and still waits is chosen again. Dispatchers take turns
-- too, so that two of them cannot exceed a limit together; rows that a commit has locked are left
-- for the next call. Nothing here need wait for the disk: what a crash takes back is chosen again.
CREATE FUNCTION laneway.dispatch_due(
    now_ms bigint, again_after bigint, at_most integer, default_limit integer
) RETURNS TABLE (operation_id uuid, tenant_id uuid, session_id uuid, lane text, due_at bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    turn record;
    room bigint;
    chosen bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true),
            pg_advisory_xact_lock(hashtextextended('laneway.dispatch', 0));
    FOR turn IN
        WITH RECURSIVE present (tenant) AS (
            (SELECT o.tenant_id FROM laneway.open_operations AS o ORDER BY o.tenant_id LIMIT 1)
            UNION ALL
            SELECT (SELECT o.tenant_id FROM laneway.open_operations AS o
                    WHERE o.tenant_id > p.tenant ORDER BY o.tenant_id LIMIT 1)
            FROM present AS p WHERE p.tenant IS NOT NULL
        ), due AS (
            SELECT p.tenant,
                   (SELECT min(o.due_at) FROM laneway.open_operations AS o
                    WHERE o.tenant_id = p.tenant) AS oldest
            FROM present AS p WHERE p.tenant IS NOT NULL
        ), driven AS (
            SELECT o.tenant_id AS tenant, count(*) AS number,
                   count(*) FILTER (WHERE NOT h.draining) AS staying
            FROM laneway.hosts AS h
            JOIN laneway.sessions AS s ON s.owner_host = h.id
            JOIN laneway.open_operations AS o ON o.session_id = s.id AND o.due_at <= now_ms
            WHERE h.role = 'worker'
            GROUP BY o.tenant_id
        ), sent AS (
            SELECT o.tenant_id AS tenant, count(*) AS number
            FROM laneway.open_operations AS o
            WHERE o.dispatched_at > now_ms - again_after
              AND NOT EXISTS (
                  SELECT 1 FROM laneway.sessions AS s
                  JOIN laneway.hosts AS h ON h.id = s.owner_host AND h.role = 'worker'
                  WHERE s.id = o.session_id)
            GROUP BY o.tenant_id
        ), fleet AS (
            SELECT sum(h.capacity) AS capacity FROM laneway.hosts AS h
            WHERE h.role = 'worker' AND NOT h.draining
        )
        SELECT d.tenant, count(*) OVER () AS tenants,
               coalesce(v.number, 0) + coalesce(q.number, 0) AS under_way,
               coalesce((t.limits ->> 'concurrentDrives')::integer, default_limit)
               - coalesce(v.number, 0) - coalesce(q.number, 0) AS slots,
               f.capacity - (SELECT coalesce(sum(staying), 0) FROM driven)
               - (SELECT coalesce(sum(number), 0) FROM sent) AS free
        FROM due AS d
        CROSS JOIN fleet AS f
        LEFT JOIN driven AS v ON v.tenant = d.tenant
        LEFT JOIN sent AS q ON q.tenant = d.tenant
        LEFT JOIN laneway.tenants AS t ON t.id = d.tenant
        WHERE d.oldest <= now_ms
        ORDER BY under_way, d.oldest
    LOOP
        room := least(coalesce(room, turn.free, at_most), at_most);
        EXIT WHEN room <= 0;
        CONTINUE WHEN turn.slots <= 0;
        RETURN QUERY
        UPDATE laneway.open_operations AS o SET dispatched_at = now_ms
        FROM (
            SELECT c.operation_id FROM laneway.open_operations AS c
            WHERE c.tenant_id = turn.tenant AND c.due_at <= now_ms
              AND (c.dispatched_at IS NULL OR c.dispatched_at <= now_ms - again_after)
              AND NOT EXISTS (
                  SELECT 1 FROM laneway.sessions AS s
                  JOIN laneway.hosts AS h ON h.id = s.owner_host AND h.role = 'worker'
                  WHERE s.id = c.session_id)
            ORDER BY c.due_at
            LIMIT least(greatest(1, least(turn.free, at_most) / turn.tenants), turn.slots, room)
            FOR UPDATE OF c SKIP LOCKED
        ) AS chosen
        WHERE o.operation_id = chosen.operation_id
        RETURNING o.operation_id, o.tenant_id, o.session_id, o.lane, o.due_at;
        GET DIAGNOSTICS chosen = ROW_COUNT;
        room := room - chosen;
    END LOOP;
END
$$;

-- When the next operation that is not due yet becomes due (null: there is none), and whether one that
-- is due waits for room in the fleet or in its tenant's limit.
CREATE FUNCTION laneway.outlook(now_ms bigint)
RETURNS TABLE (next_due bigint, backlog boolean)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (SELECT min(o.due_at) FROM laneway.open_operations AS o WHERE o.due_at > now_ms),
           EXISTS (
               SELECT 1 FROM laneway.open_operations AS o
               WHERE o.due_at <= now_ms AND o.dispatched_at IS NULL
                 AND NOT EXISTS (
                     SELECT 1 FROM laneway.sessions AS s
                     JOIN laneway.hosts AS h ON h.id = s.owner_host AND h.role = 'worker'
                     WHERE s.id = o.session_id))
$$;

-- Counts one drive pass of an operation; null when the operation is over. passes: how many in a row,
-- this one included, began at the same state. The reason why the one before failed is kept for the
-- error that ends an operation whose passes lead nowhere. The operation is no longer waiting for a
-- drive, so it is no longer dispatched. A count that a crash of the database loses does no harm.
CREATE FUNCTION laneway.begin_pass(for_tenant uuid, for_session uuid, for_operation uuid, reason text)
RETURNS TABLE (passes integer, last_reason text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true),
            set_config('synchronous_commit', 'off', true);
    RETURN QUERY
    UPDATE laneway.open_operations AS o SET
        dispatched_at = NULL,
        passes = CASE WHEN o.progress_seq = v.seq THEN o.passes + 1 ELSE 1 END,
        progress_seq = v.seq,
        last_reason = CASE WHEN o.progress_seq = v.seq THEN coalesce(reason, o.last_reason)
                           ELSE reason END
    FROM laneway.scalar_values AS v
    WHERE o.operation_id = for_operation AND o.session_id = for_session
      AND v.session_id = for_session AND v.namespace = 'pi.op.state'
      AND v.key = for_operation::text
    RETURNING o.passes, o.last_reason;
END
$$;

-- Takes back the count of a pass that was stopped through no fault of the operation (a drain).
CREATE FUNCTION laneway.excuse_pass(for_tenant uuid, for_session uuid, for_operation uuid)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true),
            set_config('synchronous_commit', 'off', true);
    UPDATE laneway.open_operations AS o SET passes = greatest(o.passes - 1, 0)
    WHERE o.operation_id = for_operation AND o.session_id = for_session;
END
$$;

-- One page of the comparison between the operations' own states and the scheduler's rows, by
-- operation id: either side may be missing. The caller decides from state what due_at should be.
CREATE FUNCTION laneway.sweep_page(after_operation text, page integer)
RETURNS TABLE (
    operation_id text, tenant_id uuid, session_id uuid, state_seq bigint, state text, meta text,
    has_row boolean, due_at bigint
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH held AS (
        SELECT v.key COLLATE "C" AS operation
        FROM laneway.scalar_values AS v
        WHERE v.namespace = 'pi.op.state' AND v.key > after_operation
        ORDER BY 1 LIMIT page
    ), listed AS (
        SELECT o.operation_id::text COLLATE "C" AS operation
        FROM laneway.open_operations AS o
        WHERE o.operation_id > coalesce(nullif(after_operation, '')::uuid,
                                        '00000000-0000-0000-0000-000000000000'::uuid)
        ORDER BY o.operation_id LIMIT page
    ), both_sides AS (
        SELECT operation FROM held UNION SELECT operation FROM listed
        ORDER BY 1 LIMIT page
    )
    SELECT b.operation, coalesce(v.tenant_id, o.tenant_id), coalesce(v.session_id, o.session_id),
           v.seq, v.value, m.value, o.operation_id IS NOT NULL, o.due_at
    FROM both_sides AS b
    LEFT JOIN laneway.scalar_values AS v
        ON v.namespace = 'pi.op.state' AND v.key = b.operation
    LEFT JOIN laneway.scalar_values AS m
        ON m.session_id = v.session_id AND m.namespace = 'pi.op.meta' AND m.key = b.operation
    LEFT JOIN laneway.open_operations AS o ON o.operation_id = b.operation::uuid
    ORDER BY b.operation
$$;

-- Makes the scheduler's row of one operation what it should be: absent when due is null, else due
-- then. Does nothing (returns false) when the operation's state is no longer the one at state_seq
-- (null: absent), because a commit came in between. The session's row is locked as commits do.
CREATE FUNCTION laneway.repair_open_operation(
    for_tenant uuid, for_session uuid, for_operation uuid, at_state_seq bigint, due bigint,
    for_lane text, for_kind text, accepted bigint
) RETURNS boolean
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    current_seq bigint;
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    PERFORM 1 FROM laneway.sessions AS s WHERE s.id = for_session FOR UPDATE;
    SELECT v.seq INTO current_seq FROM laneway.scalar_values AS v
    WHERE v.session_id = for_session AND v.namespace = 'pi.op.state' AND v.key = for_operation::text;
    IF current_seq IS DISTINCT FROM at_state_seq THEN
        RETURN false;
    END IF;
    IF due IS NULL THEN
        DELETE FROM laneway.open_operations AS o
        WHERE o.operation_id = for_operation AND o.session_id = for_session;
    ELSE
        INSERT INTO laneway.open_operations AS o
            (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)
        VALUES (for_operation, for_tenant, for_session, for_lane, for_kind, accepted, due)
        ON CONFLICT (operation_id) DO UPDATE SET due_at = excluded.due_at, dispatched_at = NULL;
    END IF;
    RETURN true;
END
$$;
