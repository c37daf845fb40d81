-- Whole sessions going in and out: restored from records, and emptied for a rewrite.

-- Entries under their own numbers and times, in the tree and in the branch index; entries come in
-- the order of their numbers. The transaction has named its tenant. A segment's tip is written once
-- for a run of entries, not for each: row versions that one transaction leaves behind are looked
-- through again at every further update of the row, which for a long session made a fork quadratic.
CREATE FUNCTION laneway.restore_entries(
    for_tenant uuid, for_session uuid, new_ids uuid[], parents uuid[], at_seqs bigint[],
    stamps bigint[], entry_types text[], customs text[], contents text[]
) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    n integer;
    branch bigint;
    tip uuid;
    tip_at bigint;
    tip_moved boolean := false;
BEGIN
    FOR n IN 1 .. coalesce(array_length(new_ids, 1), 0) LOOP
        INSERT INTO laneway.entries
            (session_id, id, tenant_id, parent_id, seq, created_at, type, custom_type, payload)
        VALUES (for_session, new_ids[n], for_tenant, parents[n], at_seqs[n], stamps[n],
                entry_types[n], customs[n], contents[n]);
        IF tip IS NOT NULL AND tip = parents[n] THEN
            tip_moved := true;
        ELSE
            IF tip_moved THEN
                UPDATE laneway.branch_meta AS m SET tip_entry_id = tip, tip_seq = tip_at
                WHERE m.session_id = for_session AND m.branch_id = branch;
                tip_moved := false;
            END IF;
            UPDATE laneway.branch_meta AS m SET tip_entry_id = new_ids[n], tip_seq = at_seqs[n]
            WHERE m.session_id = for_session AND m.tip_entry_id = parents[n]
            RETURNING m.branch_id INTO branch;
            IF NOT FOUND THEN
                branch := laneway.open_branch(
                    for_session, for_tenant, parents[n], new_ids[n], at_seqs[n]
                );
            END IF;
        END IF;
        INSERT INTO laneway.branch_entries
            (session_id, branch_id, entry_id, tenant_id, entry_seq, entry_type)
        VALUES (for_session, branch, new_ids[n], for_tenant, at_seqs[n], entry_types[n]);
        tip := new_ids[n];
        tip_at := at_seqs[n];
    END LOOP;
    IF tip_moved THEN
        UPDATE laneway.branch_meta AS m SET tip_entry_id = tip, tip_seq = tip_at
        WHERE m.session_id = for_session AND m.branch_id = branch;
    END IF;
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
