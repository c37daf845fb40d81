-- Owning sessions. All of this runs on a host's one lease connection, whose advisory locks say who
-- lives. The caller sorts sessions by id, so that claims and shared commits lock rows in one order.

-- Everything an attachment reads, of one session: every lane's leaf, configuration, state and last
-- result, and every open operation's metadata and state.
CREATE FUNCTION laneway.control_values(for_session uuid)
RETURNS TABLE (namespaces text[], keys text[], seqs bigint[], contents text[])
LANGUAGE sql STABLE
AS $$
    SELECT array_agg(v.namespace), array_agg(v.key), array_agg(v.seq), array_agg(v.value)
    FROM laneway.scalar_values AS v
    WHERE v.session_id = for_session
      AND v.namespace IN ('pi.lane.leaf', 'pi.lane.config', 'pi.lane.state', 'pi.lane.lastResult',
                          'pi.op.meta', 'pi.op.state')
$$;

-- Claims sessions for a host: takes each one's advisory lock, raises its fence and records the
-- owner. verdict is 'owned', 'held' (owner_host says by whom, null while that changes) or
-- 'missing'. An owned session comes with its row and its control values.
CREATE FUNCTION laneway.claim_sessions(
    for_host uuid, tenants uuid[], sessions uuid[], lock_keys bigint[]
) RETURNS TABLE (
    session_id uuid, verdict text, holder uuid, fence bigint, created_at bigint, agent text,
    name text, metadata jsonb, cwd text, parent_session_id uuid, legacy_parent_session_path text,
    storage_version integer, store_generation integer, next_seq bigint, message_count bigint,
    usage text, namespaces text[], keys text[], seqs bigint[], contents text[]
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    owned laneway.sessions;
    control record;
BEGIN
    FOR i IN 1 .. array_length(sessions, 1) LOOP
        PERFORM set_config('laneway.tenant', tenants[i]::text, true);
        IF NOT pg_try_advisory_lock(lock_keys[i]) THEN
            SELECT s.* INTO owned FROM laneway.sessions AS s WHERE s.id = sessions[i];
            session_id := sessions[i];
            verdict := CASE WHEN owned.id IS NULL THEN 'missing' ELSE 'held' END;
            holder := owned.owner_host;
            RETURN NEXT;
            CONTINUE;
        END IF;
        UPDATE laneway.sessions AS s SET fence = s.fence + 1, owner_host = for_host
        WHERE s.id = sessions[i]
        RETURNING s.* INTO owned;
        IF NOT FOUND THEN
            PERFORM pg_advisory_unlock(lock_keys[i]);
            session_id := sessions[i];
            verdict := 'missing';
            holder := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT * INTO control FROM laneway.control_values(owned.id);
        RETURN QUERY SELECT
            owned.id, 'owned', for_host, owned.fence, owned.created_at, owned.agent,
            owned.name, owned.metadata, owned.cwd, owned.parent_session_id,
            owned.legacy_parent_session_path, owned.storage_version, owned.store_generation,
            owned.next_seq, owned.message_count, owned.usage,
            control.namespaces, control.keys, control.seqs, control.contents;
    END LOOP;
END
$$;

-- Gives sessions back. An owner recorded by somebody else meanwhile stays. It need not wait for the
-- disk: after a crash of the database a host that is gone is recorded as the owner, and is cleared.
-- A claim must wait: a fence that a crash takes back would be given out twice.
CREATE FUNCTION laneway.release_sessions(
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
        PERFORM pg_advisory_unlock(lock_keys[i]);
    END LOOP;
END
$$;
