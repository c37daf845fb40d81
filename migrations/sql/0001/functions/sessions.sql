-- Making and ending sessions.

-- A new session with its first values (namespaces, keys, contents: one element each, numbered from
-- 1). Raises unique_violation when the id is taken.
CREATE FUNCTION laneway.create_session(
    for_tenant uuid, new_id uuid, stamp bigint, for_agent text, new_name text, new_metadata jsonb,
    new_cwd text, parent uuid, legacy_parent text, version integer, zero_usage text,
    namespaces text[], keys text[], contents text[]
) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    INSERT INTO laneway.sessions
        (id, tenant_id, created_at, updated_at, agent, name, metadata, cwd, parent_session_id,
         legacy_parent_session_path, storage_version, next_seq, usage)
    VALUES (new_id, for_tenant, stamp, stamp, for_agent, new_name, new_metadata, new_cwd, parent,
            legacy_parent, version, coalesce(array_length(namespaces, 1), 0) + 1, zero_usage);
    INSERT INTO laneway.scalar_values (session_id, namespace, key, tenant_id, seq, value)
    SELECT new_id, v.namespace, v.key, for_tenant, v.seq, v.content
    FROM unnest(namespaces, keys, contents) WITH ORDINALITY AS v (namespace, key, content, seq);
END
$$;

-- Removes a session and everything in it but its operations' receipts. The fence is the caller's
-- claim; without a match nothing happens and the answer is false.
CREATE FUNCTION laneway.delete_session(for_tenant uuid, for_session uuid, at_fence bigint)
RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    DELETE FROM laneway.sessions WHERE id = for_session AND fence = at_fence;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE laneway.operations AS r SET status = 'done', outcome = 'failed',
        error = '{"code":"session_deleted","message":"the session was deleted"}'
    FROM laneway.open_operations AS o
    WHERE o.session_id = for_session AND r.id = o.operation_id;
    DELETE FROM laneway.open_operations WHERE session_id = for_session;
    DELETE FROM laneway.list_values WHERE session_id = for_session;
    DELETE FROM laneway.scalar_values WHERE session_id = for_session;
    DELETE FROM laneway.branch_meta WHERE session_id = for_session;
    DELETE FROM laneway.branch_entries WHERE session_id = for_session;
    DELETE FROM laneway.usage_ledger WHERE session_id = for_session;
    DELETE FROM laneway.entries WHERE session_id = for_session;
    RETURN true;
END
$$;
