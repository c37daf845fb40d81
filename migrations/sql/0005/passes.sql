-- driven_by names the host whose pass over the operation is under way. It counts while that host
-- lives: what a dead one left there means nothing, and the next pass overwrites it.
ALTER TABLE laneway.open_operations ADD COLUMN driven_by uuid;
CREATE INDEX open_operations_driven ON laneway.open_operations (tenant_id, driven_by)
    WHERE driven_by IS NOT NULL;

-- Admits one drive pass of an operation and counts it; no row when the operation is over. admitted is
-- false when its tenant has as many passes under way as it may ("concurrentDrives" in its limits, else
-- default_limit): nothing is changed then. Passes of one tenant are admitted one after the other, so
-- that two hosts cannot exceed the limit together.
--
-- passes: how many in a row, this one included, began at the same state. The reason why the one
-- before failed is kept for the error that ends an operation whose passes lead nowhere. The operation
-- no longer waits for a drive, so it is no longer dispatched. What a crash of the database loses of
-- this does no harm.
CREATE FUNCTION laneway.begin_drive(
    for_tenant uuid, for_session uuid, for_operation uuid, for_host uuid, default_limit integer,
    reason text
) RETURNS TABLE (admitted boolean, passes integer, last_reason text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    most integer;
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
        RETURN QUERY SELECT false, o.passes, o.last_reason FROM laneway.open_operations AS o
        WHERE o.operation_id = for_operation AND o.session_id = for_session;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE laneway.open_operations AS o SET
        driven_by = for_host,
        dispatched_at = NULL,
        passes = CASE WHEN o.progress_seq = v.seq THEN o.passes + 1 ELSE 1 END,
        progress_seq = v.seq,
        last_reason = CASE WHEN o.progress_seq = v.seq THEN coalesce(reason, o.last_reason)
                           ELSE reason END
    FROM laneway.scalar_values AS v
    WHERE o.operation_id = for_operation AND o.session_id = for_session
      AND v.session_id = for_session AND v.namespace = 'pi.op.state'
      AND v.key = for_operation::text
    RETURNING true, o.passes, o.last_reason;
END
$$;

-- Says that a pass of this host ended and left its operation open. excused takes back its count,
-- because it was stopped through no fault of the operation (a drain, the database away); otherwise
-- reason is kept. The session may have been given back a moment before. What another host has begun
-- since stays as it is.
CREATE FUNCTION laneway.end_drive(
    for_tenant uuid, for_session uuid, for_operation uuid, for_host uuid, excused boolean,
    reason text
) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true),
            set_config('synchronous_commit', 'off', true);
    UPDATE laneway.open_operations AS o SET
        driven_by = NULL,
        passes = CASE WHEN excused THEN greatest(o.passes - 1, 0) ELSE o.passes END,
        last_reason = CASE WHEN excused THEN o.last_reason ELSE coalesce(reason, o.last_reason) END
    WHERE o.operation_id = for_operation AND o.session_id = for_session
      AND coalesce(o.driven_by, for_host) = for_host;
END
$$;

-- Gives sessions back. An owner recorded by somebody else meanwhile stays. It need not wait for the
-- disk: after a crash of the database a host that is gone is recorded as the owner, and is cleared.
-- A claim must wait: a fence that a crash takes back would be given out twice.
CREATE OR REPLACE FUNCTION laneway.release_sessions(
    for_host uuid, tenants uuid[], sessions uuid[], lock_keys bigint[]
) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR i IN 1 .. array_length(sessions, 1) LOOP
        PERFORM set_config('laneway.tenant', tenants[i]::text, true);
        UPDATE laneway.sessions AS s SET owner_host = NULL
        WHERE s.id = sessions[i] AND s.owner_host = for_host;
        -- Whatever its passes could not say themselves.
        UPDATE laneway.open_operations AS o SET driven_by = NULL
        WHERE o.session_id = sessions[i] AND o.driven_by = for_host;
        PERFORM pg_advisory_unlock(lock_keys[i]);
    END LOOP;
END
$$;

-- Clears hosts whose identity lock is free: their lease connection is gone, so they can own nothing.
-- Their sessions have no owner from here on and their dispatched operations are due again at once. The
-- fence moves too, so that a host that does not know yet writes nothing even before the next claim.
-- An operation that was dispatched to a session in which no pass had begun yet may be what killed the
-- host while it opened the session: that counts as a pass, or it would be tried for ever.
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
        ), again AS (
            UPDATE laneway.open_operations AS o SET
                dispatched_at = NULL,
                passes = o.passes + CASE
                    WHEN host.role = 'worker' AND o.dispatched_at IS NOT NULL AND NOT EXISTS (
                        SELECT 1 FROM laneway.open_operations AS d
                        WHERE d.session_id = f.id AND d.driven_by = host.id)
                    THEN 1 ELSE 0 END
            FROM freed AS f WHERE o.session_id = f.id
        )
        SELECT count(*) INTO sessions FROM freed;
        id := host.id;
        name := host.name;
        role := host.role;
        RETURN NEXT;
    END LOOP;
END
$$;
