-- Life and death of hosts.

-- Clears hosts whose identity lock is free: their lease connection is gone, so they can own nothing.
-- Their sessions have no owner from here on and their dispatched operations are due again at once. The
-- fence moves too, so that a host that does not know yet writes nothing even before the next claim.
-- Returns who died. Never call it on a lease connection: a lock is always free for its own holder.
CREATE FUNCTION laneway.bury_dead_hosts()
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
            UPDATE laneway.open_operations AS o SET dispatched_at = NULL
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

-- Ends the lease connection of hosts that hold their lock but stopped saying that they live (frozen,
-- or cut off without the network saying so). Returns who was cut off. It runs as the caller, who may
-- end connections of its own role only.
CREATE FUNCTION laneway.cut_off_silent_hosts(silent_for interval)
RETURNS TABLE (id uuid, name text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    silent laneway.hosts;
BEGIN
    -- A loop, not one statement: the planner is free to end connections before it asks whose they
    -- are.
    FOR silent IN
        SELECT h.* FROM laneway.hosts AS h
        WHERE h.heartbeat_at < clock_timestamp() - silent_for
          AND EXISTS (
              -- The backend's number may have been given to another connection since.
              SELECT 1 FROM pg_locks AS l
              WHERE l.pid = h.lease_pid AND l.locktype = 'advisory' AND l.granted
                AND l.objsubid = 1
                AND l.database = (SELECT d.oid FROM pg_database AS d
                                  WHERE d.datname = current_database())
                AND ((l.classid::bigint << 32) | l.objid::bigint) = h.lock_key)
    LOOP
        IF pg_terminate_backend(silent.lease_pid) THEN
            id := silent.id;
            name := silent.name;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- The host that owns a session, if one does.
CREATE FUNCTION laneway.owner_of(for_tenant uuid, for_session uuid)
RETURNS TABLE (host_id uuid, role text, url text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT h.id, h.role, h.url
    FROM laneway.sessions AS s JOIN laneway.hosts AS h ON h.id = s.owner_host
    WHERE s.id = for_session;
END
$$;
