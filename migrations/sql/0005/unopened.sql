-- What a host does about operations in sessions that it cannot open: it has no owner's view of them.

-- A session's open operations, as the scheduler's rows say.
CREATE FUNCTION laneway.open_of_session(for_tenant uuid, for_session uuid)
RETURNS TABLE (operation_id uuid, lane text, kind text, due_at bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT o.operation_id, o.lane, o.kind, o.due_at FROM laneway.open_operations AS o
    WHERE o.session_id = for_session;
END
$$;

-- Counts a pass that could not begin, because the operation's session could not be opened. The same
-- count as begin_drive's, but it does without the operation's state, which may be what is missing. The
-- operation waits for a drive again at once. Returns null when it is over.
CREATE FUNCTION laneway.count_unopened(
    for_tenant uuid, for_session uuid, for_operation uuid, reason text
) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    counted integer;
    at_seq bigint;
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true),
            set_config('synchronous_commit', 'off', true);
    SELECT v.seq INTO at_seq FROM laneway.scalar_values AS v
    WHERE v.session_id = for_session AND v.namespace = 'pi.op.state' AND v.key = for_operation::text;
    at_seq := coalesce(at_seq, 0);
    UPDATE laneway.open_operations AS o SET
        dispatched_at = NULL,
        passes = CASE WHEN o.progress_seq = at_seq THEN o.passes + 1 ELSE 1 END,
        progress_seq = at_seq,
        last_reason = reason
    WHERE o.operation_id = for_operation AND o.session_id = for_session
    RETURNING o.passes INTO counted;
    RETURN counted;
END
$$;

-- Ends an operation as failed while nobody owns its session: everything that is the operation's goes,
-- its receipt says why. lane_state and last_result are the lane's new values; null leaves the lane as
-- it is, because it belongs to another operation. Does nothing and returns false when somebody owns the
-- session, or when it is no longer at seen_seq, from which the caller made the values, or when the
-- operation is over. The fence moves, so that an owner who does not know yet can write nothing.
CREATE FUNCTION laneway.end_unopened(
    for_tenant uuid, for_session uuid, for_operation uuid, seen_seq bigint,
    lane_state text, last_result text, result text, error text, now_ms bigint
) RETURNS boolean
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    in_lane text;
    owned_prefix text := for_operation::text || ':';
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    UPDATE laneway.sessions AS s SET fence = s.fence + 1, next_seq = s.next_seq + 2,
                                     updated_at = now_ms
    WHERE s.id = for_session AND s.owner_host IS NULL AND s.next_seq = seen_seq
      AND EXISTS (SELECT 1 FROM laneway.open_operations AS o
                  WHERE o.operation_id = for_operation AND o.session_id = for_session);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM laneway.open_operations AS o
    WHERE o.operation_id = for_operation AND o.session_id = for_session
    RETURNING o.lane INTO in_lane;
    DELETE FROM laneway.scalar_values AS v
    WHERE v.session_id = for_session
      AND (v.namespace IN ('pi.op.meta', 'pi.op.state') AND v.key = for_operation::text
           OR v.namespace IN ('pi.op.tool_args', 'pi.op.tool_memo', 'pi.op.preparation',
                              'pi.pending.tool_output')
              AND starts_with(v.key, owned_prefix));
    DELETE FROM laneway.list_values AS l
    WHERE l.session_id = for_session AND l.namespace = 'pi.pending.assistant_frame'
      AND starts_with(l.key, owned_prefix);
    IF lane_state IS NOT NULL THEN
        INSERT INTO laneway.scalar_values AS v (session_id, namespace, key, tenant_id, seq, value)
        VALUES (for_session, 'pi.lane.state', in_lane, for_tenant, seen_seq, lane_state),
               (for_session, 'pi.lane.lastResult', in_lane, for_tenant, seen_seq + 1, last_result)
        ON CONFLICT (session_id, namespace, key) DO UPDATE
        SET seq = excluded.seq, value = excluded.value;
    END IF;
    UPDATE laneway.operations AS r
    SET status = 'done', outcome = 'failed', result = end_unopened.result,
        error = end_unopened.error, finished_at = now_ms
    WHERE r.id = for_operation AND r.session_id = for_session;
    RETURN true;
END
$$;

-- Makes the scheduler's row of one operation what it should be: absent when due is null, else due
-- then. Does nothing (returns false) when the operation's state is no longer the one at state_seq
-- (null: absent), because a commit came in between; nor when a row is to go whose operation has not
-- ended as far as its receipt says: what it lost is for whoever tries to drive it. The session's row
-- is locked as commits do.
CREATE OR REPLACE FUNCTION laneway.repair_open_operation(
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
        WHERE o.operation_id = for_operation AND o.session_id = for_session
          AND NOT EXISTS (SELECT 1 FROM laneway.operations AS r
                          WHERE r.id = for_operation AND r.status = 'open');
        RETURN FOUND;
    END IF;
    INSERT INTO laneway.open_operations AS o
        (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)
    VALUES (for_operation, for_tenant, for_session, for_lane, for_kind, accepted, due)
    ON CONFLICT (operation_id) DO UPDATE SET due_at = excluded.due_at, dispatched_at = NULL;
    RETURN true;
END
$$;
