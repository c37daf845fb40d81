-- What a host asks of sessions and operations that it does not own.

-- Where a session stands, which agent's it is and who owns it; no row when the tenant has no such session. The host's
-- columns are null while nobody owns it.
CREATE FUNCTION laneway.whereabouts(for_tenant uuid, for_session uuid)
RETURNS TABLE (next_seq bigint, agent text, host_id uuid, role text, url text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT s.next_seq, s.agent, h.id, h.role, h.url
    FROM laneway.sessions AS s LEFT JOIN laneway.hosts AS h ON h.id = s.owner_host
    WHERE s.id = for_session;
END
$$;

-- The receipt of an operation, open or done, in whatever session of the tenant it is.
CREATE FUNCTION laneway.find_operation(for_tenant uuid, for_operation uuid)
RETURNS TABLE (session_id uuid, lane text, kind text, accepted_at bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT r.session_id, r.lane, r.kind, r.accepted_at
    FROM laneway.operations AS r WHERE r.id = for_operation;
END
$$;

-- When a session's open operations are due, as the scheduler's rows say.
CREATE FUNCTION laneway.due_of_session(for_tenant uuid, for_session uuid)
RETURNS TABLE (operation_id uuid, due_at bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT o.operation_id, o.due_at FROM laneway.open_operations AS o
    WHERE o.session_id = for_session;
END
$$;

-- Makes an open operation due now, if it is due later. False when it is not open.
CREATE FUNCTION laneway.wake_operation(
    for_tenant uuid, for_session uuid, for_operation uuid, now_ms bigint
) RETURNS boolean
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    UPDATE laneway.open_operations AS o
    SET due_at = least(o.due_at, now_ms), dispatched_at = NULL
    WHERE o.operation_id = for_operation AND o.session_id = for_session;
    RETURN FOUND;
END
$$;

-- The newest version of a tenant's agent profile.
CREATE FUNCTION laneway.agent_profile(for_tenant uuid, for_name text)
RETURNS TABLE (version integer, profile text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT a.version, a.profile FROM laneway.agents AS a
    WHERE a.name = for_name ORDER BY a.version DESC LIMIT 1;
END
$$;
