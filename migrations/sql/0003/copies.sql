-- Whole sessions going in and out: restored from records, and emptied for a rewrite.

-- An entry under its own number and time, in the tree and in the branch index; entries come in the
-- order of their numbers. The transaction has named its tenant.
CREATE FUNCTION laneway.restore_entry(
    for_tenant uuid, for_session uuid, new_id uuid, parent uuid, at_seq bigint, stamp bigint,
    entry_type text, custom text, content text
) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    branch bigint;
BEGIN
    INSERT INTO laneway.entries
        (session_id, id, tenant_id, parent_id, seq, created_at, type, custom_type, payload)
    VALUES (for_session, new_id, for_tenant, parent, at_seq, stamp, entry_type, custom, content);
    UPDATE laneway.branch_meta AS m SET tip_entry_id = new_id, tip_seq = at_seq
    WHERE m.session_id = for_session AND m.tip_entry_id = parent
    RETURNING m.branch_id INTO branch;
    IF NOT FOUND THEN
        branch := laneway.open_branch(for_session, for_tenant, parent, new_id, at_seq);
    END IF;
    INSERT INTO laneway.branch_entries
        (session_id, branch_id, entry_id, tenant_id, entry_seq, entry_type)
    VALUES (for_session, branch, new_id, for_tenant, at_seq, entry_type);
END
$$;

-- Takes everything out of a session but its row, for a rewrite that fills it again in the same
-- transaction. The fence is the caller's claim; without a match nothing happens and the answer is
-- false. Raises the store generation, so that whoever knew the old content by number knows.
CREATE FUNCTION laneway.empty_session(for_session uuid, at_fence bigint) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE laneway.sessions SET store_generation = store_generation + 1, name = NULL
    WHERE id = for_session AND fence = at_fence;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM laneway.list_values WHERE session_id = for_session;
    DELETE FROM laneway.scalar_values WHERE session_id = for_session;
    DELETE FROM laneway.branch_meta WHERE session_id = for_session;
    DELETE FROM laneway.branch_entries WHERE session_id = for_session;
    DELETE FROM laneway.usage_ledger WHERE session_id = for_session;
    DELETE FROM laneway.entries WHERE session_id = for_session;
    RETURN true;
END
$$;
