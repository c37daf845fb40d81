-- What kills every host that opens its session has to be counted and found without being opened.

-- The sequence number of an operation's state, 0 when it has none.
CREATE FUNCTION laneway.state_seq(of_session uuid, of_operation uuid) RETURNS bigint
LANGUAGE sql
STABLE
AS $$
    SELECT coalesce((SELECT v.seq FROM laneway.scalar_values AS v
                     WHERE v.session_id = of_session AND v.namespace = 'pi.op.state'
                       AND v.key = of_operation::text), 0)
$$;

-- Clears hosts whose identity lock is free, as before, except that what it charges counts from the
-- operation's state on: a pass that led further than those before it begins a new count, and the passes
-- that begin later go on with this one.
CREATE OR REPLACE FUNCTION laneway.bury_dead_hosts()
RETURNS TABLE (id uuid, name text, role text, sessions bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    host laneway.hosts;
BEGIN
    FOR host IN SELECT h.* FROM laneway.hosts AS h LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(host.lock_key);
        DELETE FROM laneway.hosts AS h WHERE h.id = host.id;
        CONTINUE WHEN NOT FOUND;
        WITH freed AS (
            UPDATE laneway.sessions AS s SET owner_host = NULL, fence = s.fence + 1
            WHERE s.owner_host = host.id RETURNING s.id
        ), driven AS (
            SELECT o.session_id, o.passes >= laneway.suspect_from() AS suspect
            FROM freed AS f JOIN laneway.open_operations AS o ON o.session_id = f.id
            WHERE o.driven_by = host.id
        ), opened AS (
            SELECT f.id, host.role = 'worker'
                   AND NOT EXISTS (SELECT 1 FROM driven AS d WHERE d.suspect OR d.session_id = f.id)
                   AS may_have_killed
            FROM freed AS f
        ), left_behind AS (
            SELECT o.operation_id, p.may_have_killed AND o.dispatched_at IS NOT NULL AS charged,
                   laneway.state_seq(o.session_id, o.operation_id) AS at_seq
            FROM opened AS p JOIN laneway.open_operations AS o ON o.session_id = p.id
        ), again AS (
            UPDATE laneway.open_operations AS o SET
                dispatched_at = NULL,
                passes = CASE WHEN NOT l.charged THEN o.passes
                              WHEN o.progress_seq = l.at_seq THEN o.passes + 1
                              ELSE 1 END,
                progress_seq = CASE WHEN l.charged THEN l.at_seq ELSE o.progress_seq END,
                driven_by = CASE WHEN l.charged THEN host.id ELSE o.driven_by END
            FROM left_behind AS l WHERE o.operation_id = l.operation_id
        )
        SELECT count(*) INTO sessions FROM freed;
        id := host.id;
        name := host.name;
        role := host.role;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Operations of sessions that nobody owns which had `most` passes or more without any progress: whoever
-- opens the session of one would end it, if it lived that long. Of every tenant, as a burial is.
CREATE FUNCTION laneway.hopeless(most integer)
RETURNS TABLE (
    tenant_id uuid, session_id uuid, operation_id uuid, lane text, kind text, due_at bigint,
    passes integer, last_reason text
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT o.tenant_id, o.session_id, o.operation_id, o.lane, o.kind, o.due_at, o.passes,
           o.last_reason
    FROM laneway.open_operations AS o
    JOIN laneway.sessions AS s ON s.id = o.session_id
    WHERE o.passes >= most AND s.owner_host IS NULL
      AND o.progress_seq = laneway.state_seq(o.session_id, o.operation_id)
$$;
