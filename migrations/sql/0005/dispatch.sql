-- Chooses operations that wait for a drive (due, and no live worker owns their session), marks them
-- dispatched and returns them. No more than the workers that stay have room for: their capacity, less
-- the passes under way and the operations dispatched and not yet begun (without any worker, at_most).
-- Tenants take turns, whoever has least under way first: each gets an equal share, within its limit
-- of concurrent drives ("concurrentDrives" in its limits, else default_limit).
--
-- Where there is no room, a tenant that has less than its share under way is dispatched all the same,
-- up to that share: its operations wait at the hosts, which give the next place that becomes free to
-- whoever has least. Otherwise a tenant whose owned sessions have something due at every moment would
-- take each place again as it becomes free.
--
-- What was dispatched more than again_after ms ago and still waits is chosen again. Dispatchers take
-- turns too, so that two of them cannot exceed a limit together; rows that a commit has locked are left
-- for the next call. Nothing here need wait for the disk: what a crash takes back is chosen again.
CREATE OR REPLACE FUNCTION laneway.dispatch_due(
    now_ms bigint, again_after bigint, at_most integer, default_limit integer
) RETURNS TABLE (operation_id uuid, tenant_id uuid, session_id uuid, lane text, due_at bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    turn record;
    -- How many more may be chosen, and how many more there is room for.
    remaining bigint := at_most;
    room bigint;
    quota bigint;
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
            FROM laneway.open_operations AS o
            JOIN laneway.hosts AS h ON h.id = o.driven_by
            WHERE o.driven_by IS NOT NULL
            GROUP BY o.tenant_id
        ), sent AS (
            SELECT o.tenant_id AS tenant, count(*) AS number
            FROM laneway.open_operations AS o
            WHERE o.dispatched_at > now_ms - again_after
            GROUP BY o.tenant_id
        ), fleet AS (
            SELECT sum(h.capacity) AS capacity FROM laneway.hosts AS h
            WHERE h.role = 'worker' AND NOT h.draining
        ), standing AS (
            SELECT d.tenant, d.oldest, count(*) OVER () AS tenants,
                   coalesce(v.number, 0) + coalesce(q.number, 0) AS under_way
            FROM due AS d
            LEFT JOIN driven AS v ON v.tenant = d.tenant
            LEFT JOIN sent AS q ON q.tenant = d.tenant
            WHERE d.oldest <= now_ms
        )
        SELECT s.tenant, s.tenants,
               coalesce((t.limits ->> 'concurrentDrives')::integer, default_limit)
               - s.under_way AS slots,
               coalesce(greatest(1, f.capacity / s.tenants) - s.under_way, 0) AS owed,
               f.capacity - (SELECT coalesce(sum(staying), 0) FROM driven)
               - (SELECT coalesce(sum(number), 0) FROM sent) AS free
        FROM standing AS s
        CROSS JOIN fleet AS f
        LEFT JOIN laneway.tenants AS t ON t.id = s.tenant
        ORDER BY s.under_way, s.oldest
    LOOP
        EXIT WHEN remaining <= 0;
        room := coalesce(room, turn.free, at_most);
        quota := least(room, greatest(1, least(turn.free, at_most) / turn.tenants));
        quota := greatest(quota, least(turn.owed, greatest(1, at_most / turn.tenants)));
        quota := least(quota, turn.slots, remaining);
        CONTINUE WHEN quota <= 0;
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
            LIMIT quota
            FOR UPDATE OF c SKIP LOCKED
        ) AS chosen
        WHERE o.operation_id = chosen.operation_id
        RETURNING o.operation_id, o.tenant_id, o.session_id, o.lane, o.due_at;
        GET DIAGNOSTICS chosen = ROW_COUNT;
        room := room - chosen;
        remaining := remaining - chosen;
    END LOOP;
END
$$;
