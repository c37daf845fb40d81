-- One physical transaction for the commits of one or more sessions (never two of one session).
--
-- A document is one session's commit. sessions, tenants, fences, stamps (Unix ms), writes (how many
-- sequence numbers it takes), steps (how many rows of the step arrays are its own), messages and
-- usages (new totals, or null to leave them) have one element per document. The step arrays hold
-- all documents' steps one after the other; the meaning of a..e depends on code:
--
--   1 entry      a id         b parent id   c payload       d type         e custom type
--   2 usage      a id         b entry id    c usage         d details      e 't' for an adjustment
--   3 set        a namespace  b key         c value
--   4 unset      a namespace  b key
--   5 append     a namespace  b key         c element
--   6 clear      a namespace  b key
--   7 opened     a operation  b lane        c kind          d due (ms)
--   8 due        a operation  b due (ms)
--   9 finished   a operation  b outcome     c result        d error
--  10 named      a name or null
--
-- Steps 1 to 6 take one sequence number each, in order, and come first. The result has one element
-- per document: its first sequence number, or null when the fence did not match, in which case none
-- of that document's steps were applied. Anything else that is wrong raises and nothing is applied.
--
-- Row by row on purpose: each step is one statement whose generic plan stays cached in the backend
-- (a few microseconds), while set-based statements over unnested arrays are planned at every call.
CREATE FUNCTION laneway.commit_batch(
    sessions uuid[], tenants uuid[], fences bigint[], stamps bigint[], writes integer[],
    steps integer[], messages bigint[], usages text[],
    code smallint[], a text[], b text[], c text[], d text[], e text[],
    relaxed boolean
) RETURNS bigint[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    answer bigint[] := '{}';
    step integer := 0;
    last_step integer;
    first_seq bigint;
    this_seq bigint;
    this_session uuid;
    this_tenant uuid;
    this_id uuid;
    this_parent uuid;
    -- The newest entry of the chain that this document is writing, its segment, and whether
    -- branch_meta is still to be told.
    tip uuid;
    tip_at bigint;
    tip_moved boolean;
    branch bigint;
BEGIN
    IF relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR doc IN 1 .. array_length(sessions, 1) LOOP
        last_step := step + steps[doc];
        this_session := sessions[doc];
        IF this_tenant IS DISTINCT FROM tenants[doc] THEN
            this_tenant := tenants[doc];
            PERFORM set_config('laneway.tenant', this_tenant::text, true);
        END IF;
        UPDATE laneway.sessions AS s SET
            next_seq = s.next_seq + writes[doc],
            updated_at = stamps[doc],
            message_count = coalesce(messages[doc], s.message_count),
            usage = coalesce(usages[doc], s.usage)
        WHERE s.id = this_session AND s.tenant_id = this_tenant AND s.fence = fences[doc]
        RETURNING s.next_seq - writes[doc] INTO first_seq;
        IF NOT FOUND THEN
            answer := answer || NULL::bigint;
            step := last_step;
            CONTINUE;
        END IF;
        answer := answer || first_seq;
        this_seq := first_seq - 1;
        tip := NULL;
        tip_moved := false;
        WHILE step < last_step LOOP
            step := step + 1;
            this_seq := this_seq + 1;
            CASE code[step]
            WHEN 3 THEN
                UPDATE laneway.scalar_values AS v SET seq = this_seq, value = c[step]
                WHERE v.session_id = this_session AND v.namespace = a[step] AND v.key = b[step];
                IF NOT FOUND THEN
                    INSERT INTO laneway.scalar_values
                        (session_id, namespace, key, tenant_id, seq, value)
                    VALUES (this_session, a[step], b[step], this_tenant, this_seq, c[step]);
                END IF;
            WHEN 5 THEN
                INSERT INTO laneway.list_values (session_id, namespace, key, seq, tenant_id, value)
                VALUES (this_session, a[step], b[step], this_seq, this_tenant, c[step]);
            WHEN 1 THEN
                this_id := a[step]::uuid;
                this_parent := b[step]::uuid;
                PERFORM 1 FROM laneway.usage_ledger AS u
                WHERE u.session_id = this_session AND u.id = this_id;
                IF FOUND THEN
                    RAISE unique_violation USING MESSAGE = format('%s is a usage row', this_id);
                END IF;
                INSERT INTO laneway.entries
                    (session_id, id, tenant_id, parent_id, seq, created_at, type, custom_type, payload)
                VALUES (this_session, this_id, this_tenant, this_parent, this_seq, stamps[doc],
                        d[step], e[step], c[step]);
                IF tip IS NOT NULL AND tip = this_parent THEN
                    tip_moved := true;
                ELSE
                    IF tip_moved THEN
                        UPDATE laneway.branch_meta AS m SET tip_entry_id = tip, tip_seq = tip_at
                        WHERE m.session_id = this_session AND m.branch_id = branch;
                        tip_moved := false;
                    END IF;
                    UPDATE laneway.branch_meta AS m SET tip_entry_id = this_id, tip_seq = this_seq
                    WHERE m.session_id = this_session AND m.tip_entry_id = this_parent
                    RETURNING m.branch_id INTO branch;
                    IF NOT FOUND THEN
                        branch := laneway.open_branch(
                            this_session, this_tenant, this_parent, this_id, this_seq
                        );
                    END IF;
                END IF;
                INSERT INTO laneway.branch_entries
                    (session_id, branch_id, entry_id, tenant_id, entry_seq, entry_type)
                VALUES (this_session, branch, this_id, this_tenant, this_seq, d[step]);
                tip := this_id;
                tip_at := this_seq;
            WHEN 2 THEN
                this_id := a[step]::uuid;
                PERFORM 1 FROM laneway.entries AS x
                WHERE x.session_id = this_session AND x.id = this_id;
                IF FOUND THEN
                    RAISE unique_violation USING MESSAGE = format('id %s is an entry', this_id);
                END IF;
                INSERT INTO laneway.usage_ledger
                    (session_id, id, tenant_id, seq, created_at, entry_id, adjustment, usage, details)
                VALUES (this_session, this_id, this_tenant, this_seq, stamps[doc],
                        b[step]::uuid, e[step] IS NOT NULL, c[step], d[step]);
            WHEN 4 THEN
                DELETE FROM laneway.scalar_values AS v
                WHERE v.session_id = this_session AND v.namespace = a[step] AND v.key = b[step];
            WHEN 6 THEN
                DELETE FROM laneway.list_values AS l
                WHERE l.session_id = this_session AND l.namespace = a[step] AND l.key = b[step];
            WHEN 7 THEN
                INSERT INTO laneway.open_operations
                    (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)
                VALUES (a[step]::uuid, this_tenant, this_session, b[step], c[step], stamps[doc],
                        d[step]::bigint);
                INSERT INTO laneway.operations
                    (id, tenant_id, session_id, lane, kind, status, accepted_at)
                VALUES (a[step]::uuid, this_tenant, this_session, b[step], c[step], 'open',
                        stamps[doc]);
            WHEN 8 THEN
                UPDATE laneway.open_operations AS o
                SET due_at = b[step]::bigint, dispatched_at = NULL
                WHERE o.operation_id = a[step]::uuid AND o.session_id = this_session;
            WHEN 9 THEN
                DELETE FROM laneway.open_operations AS o
                WHERE o.operation_id = a[step]::uuid AND o.session_id = this_session;
                UPDATE laneway.operations AS r
                SET status = 'done', outcome = b[step], result = c[step], error = d[step],
                    finished_at = stamps[doc]
                WHERE r.id = a[step]::uuid AND r.session_id = this_session;
            WHEN 10 THEN
                UPDATE laneway.sessions AS s SET name = a[step] WHERE s.id = this_session;
            END CASE;
        END LOOP;
        IF tip_moved THEN
            UPDATE laneway.branch_meta AS m SET tip_entry_id = tip, tip_seq = tip_at
            WHERE m.session_id = this_session AND m.branch_id = branch;
        END IF;
    END LOOP;
    RETURN answer;
END
$$;
