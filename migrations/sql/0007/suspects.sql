-- A host that dies was driving many operations, and one of them may have killed it. All of them are
-- charged with a pass, so whoever was beside a killer each time would be given up with it. Therefore an
-- operation under which hosts died again and again without any progress is a suspect: a host begins
-- one suspect's pass at a time.

-- The number, in a row without progress, from which a pass after a death is a suspect's.
CREATE FUNCTION laneway.suspect_from() RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT 3';

-- Admits one drive pass of an operation and counts it, as the form with six arguments does, which
-- processes of the release before call. A step after a later deploy may remove that one.
--
-- suspected is true where a pass is refused because it is a suspect's and the caller does not say that
-- it begins it alone. Nothing is counted then, in the very statement that would have counted: a killer
-- leaves no time to take a count back. passes and last_reason say what would have been counted. The
-- operation is no longer dispatched, because its owner answers for it while it waits, and somebody
-- else's deed must not be charged to it at a burial.
--
-- Whether the pass before ended with its host's death is read off driven_by: who ends a pass in order
-- clears it. Passes that a hook fails kill nobody, and need not wait for each other.
CREATE FUNCTION laneway.begin_drive(
    for_tenant uuid, for_session uuid, for_operation uuid, for_host uuid, default_limit integer,
    reason text, alone boolean
) RETURNS TABLE (admitted boolean, suspected boolean, passes integer, last_reason text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    most integer;
    this record;
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true),
            set_config('synchronous_commit', 'off', true),
            pg_advisory_xact_lock(hashtextextended('laneway.drives ' || for_tenant::text, 0));
    SELECT coalesce((t.limits ->> 'concurrentDrives')::integer, default_limit) INTO most
    FROM laneway.tenants AS t WHERE t.id = for_tenant;
    IF most <= (
        SELECT count(*) FROM laneway.open_operations AS o
        JOIN laneway.hosts AS h ON h.id = o.driven_by
        WHERE o.tenant_id = for_tenant AND o.driven_by IS NOT NULL
          AND o.operation_id <> for_operation
    ) THEN
        RETURN QUERY SELECT false, false, o.passes, o.last_reason FROM laneway.open_operations AS o
        WHERE o.operation_id = for_operation AND o.session_id = for_session;
        RETURN;
    END IF;
    SELECT v.seq AS at_seq, o.driven_by IS NOT NULL AS after_death,
           CASE WHEN o.progress_seq = v.seq THEN o.passes + 1 ELSE 1 END AS number,
           CASE WHEN o.progress_seq = v.seq THEN coalesce(reason, o.last_reason)
                ELSE reason END AS because
    INTO this
    FROM laneway.open_operations AS o
    JOIN laneway.scalar_values AS v ON v.session_id = for_session
        AND v.namespace = 'pi.op.state' AND v.key = for_operation::text
    WHERE o.operation_id = for_operation AND o.session_id = for_session
    FOR UPDATE OF o;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF this.after_death AND this.number >= laneway.suspect_from() AND NOT alone THEN
        UPDATE laneway.open_operations AS o SET dispatched_at = NULL
        WHERE o.operation_id = for_operation;
        RETURN QUERY SELECT false, true, this.number, this.because;
        RETURN;
    END IF;
    UPDATE laneway.open_operations AS o SET
        driven_by = for_host,
        dispatched_at = NULL,
        passes = this.number,
        progress_seq = this.at_seq,
        last_reason = this.because
    WHERE o.operation_id = for_operation;
    RETURN QUERY SELECT true, false, this.number, this.because;
END
$$;

-- Clears hosts whose identity lock is free: their lease connection is gone, so they can own nothing.
-- Their sessions have no owner from here on and their dispatched operations are due again at once. The
-- fence moves too, so that a host that does not know yet writes nothing even before the next claim.
--
-- An operation that was dispatched to a session in which no pass had begun yet may be what killed the
-- host while it opened the session: that counts as a pass, or it would be tried for ever. It does not
-- count when the host was driving a suspect, who is charged already.
-- Returns who died. Never call it on a lease connection: a lock is always free for its own holder.
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
                   AS charged
            FROM freed AS f
        ), again AS (
            UPDATE laneway.open_operations AS o SET
                dispatched_at = NULL,
                passes = CASE WHEN p.charged AND o.dispatched_at IS NOT NULL
                              THEN o.passes + 1 ELSE o.passes END,
                driven_by = CASE WHEN p.charged AND o.dispatched_at IS NOT NULL
                                 THEN host.id ELSE o.driven_by END
            FROM opened AS p WHERE o.session_id = p.id
        )
        SELECT count(*) INTO sessions FROM freed;
        id := host.id;
        name := host.name;
        role := host.role;
        RETURN NEXT;
    END LOOP;
END
$$;
