-- One physical transaction for the commits of one or more sessions (never two of one session).
--
-- A document is one session's commit. ids has two elements per document: session and tenant. numbers
-- begins with 1 when the transaction need not wait for the disk, else 0; then come six per document:
-- the fence, the commit's instant (Unix ms), how many sequence numbers it takes, how many steps and
-- how many texts are its own, and the new message count (null: unchanged). texts begins for each
-- document with the new usage totals (null: unchanged); then come its steps' texts, by code:
--
--   1 entry      id, parent id, payload, type, custom type
--   2 usage      id, entry id, usage, details, 't' for an adjustment
--   3 set        namespace, key, value
--   4 unset      namespace, key
--   5 append     namespace, key, element
--   6 clear      namespace, key
--   7 opened     operation, lane, kind, due (ms)
--   8 due        operation, due (ms)
--   9 finished   operation, outcome, result, error
--  10 named      name or null
--  11 opened     operation, lane, kind, due (ms), accepted (ms), traceparent or null
--  12 noted      idempotency key, what was made under it
--
-- Steps 1 to 6 and 12 take one sequence number each, in order, and come first. The result has one element
-- per document: its first sequence number, or null when the fence did not match, in which case none
-- of that document's steps were applied. Anything else that is wrong raises and nothing is applied.
--
-- With the owner's rights on purpose: the first statement takes only a session of the given tenant
-- under the given fence, and every other one is bound to that session. The policies, which would go
-- by the same argument once more, cost a tenth of the whole commit.
--
-- Row by row on purpose: each step is one statement whose generic plan stays cached in the backend
-- (a few microseconds), while set-based statements over unnested arrays are planned at every call.
-- Few arguments on purpose: each costs the parser, the driver and the executor.
CREATE OR REPLACE FUNCTION laneway.commit_batch(
    ids uuid[], numbers bigint[], codes smallint[], texts text[]
) RETURNS bigint[]
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    answer bigint[] := '{}';
    -- Where the current document's numbers, and the next step's code and texts, begin.
    n integer := 2;
    step integer := 0;
    t integer := 0;
    last_step integer;
    last_text integer;
    stamp bigint;
    taken bigint;
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
    accepted bigint;
BEGIN
    IF numbers[1] = 1 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR doc IN 1 .. array_length(ids, 1) / 2 LOOP
        this_session := ids[doc * 2 - 1];
        this_tenant := ids[doc * 2];
        stamp := numbers[n + 1];
        taken := numbers[n + 2];
        last_step := step + numbers[n + 3];
        last_text := t + numbers[n + 4];
        UPDATE laneway.sessions AS s SET
            next_seq = s.next_seq + taken,
            updated_at = stamp,
            message_count = coalesce(numbers[n + 5], s.message_count),
            usage = coalesce(texts[t + 1], s.usage)
        WHERE s.id = this_session AND s.tenant_id = this_tenant AND s.fence = numbers[n]
        RETURNING s.next_seq - taken INTO first_seq;
        n := n + 6;
        IF NOT FOUND THEN
            answer := answer || NULL::bigint;
            step := last_step;
            t := last_text;
            CONTINUE;
        END IF;
        answer := answer || first_seq;
        this_seq := first_seq - 1;
        t := t + 1;
        tip := NULL;
        tip_moved := false;
        WHILE step < last_step LOOP
            step := step + 1;
            this_seq := this_seq + 1;
            CASE codes[step]
            WHEN 3 THEN
                UPDATE laneway.scalar_values AS v SET seq = this_seq, value = texts[t + 3]
                WHERE v.session_id = this_session AND v.namespace = texts[t + 1]
                  AND v.key = texts[t + 2];
                IF NOT FOUND THEN
                    INSERT INTO laneway.scalar_values
                        (session_id, namespace, key, tenant_id, seq, value)
                    VALUES (this_session, texts[t + 1], texts[t + 2], this_tenant, this_seq,
                            texts[t + 3]);
                END IF;
                t := t + 3;
            WHEN 5 THEN
                INSERT INTO laneway.list_values (session_id, namespace, key, seq, tenant_id, value)
                VALUES (this_session, texts[t + 1], texts[t + 2], this_seq, this_tenant,
                        texts[t + 3]);
                t := t + 3;
            WHEN 1 THEN
                this_id := texts[t + 1]::uuid;
                this_parent := texts[t + 2]::uuid;
                INSERT INTO laneway.entries
                    (session_id, id, tenant_id, parent_id, seq, created_at, type, custom_type, payload)
                SELECT this_session, this_id, this_tenant, this_parent, this_seq, stamp,
                       texts[t + 4], texts[t + 5], texts[t + 3]
                WHERE NOT EXISTS (
                    SELECT FROM laneway.usage_ledger AS u
                    WHERE u.session_id = this_session AND u.id = this_id
                );
                IF NOT FOUND THEN
                    RAISE unique_violation USING MESSAGE = format('%s is a usage row', this_id);
                END IF;
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
                VALUES (this_session, branch, this_id, this_tenant, this_seq, texts[t + 4]);
                tip := this_id;
                tip_at := this_seq;
                t := t + 5;
            WHEN 2 THEN
                this_id := texts[t + 1]::uuid;
                INSERT INTO laneway.usage_ledger
                    (session_id, id, tenant_id, seq, created_at, entry_id, adjustment, usage, details)
                SELECT this_session, this_id, this_tenant, this_seq, stamp, texts[t + 2]::uuid,
                       texts[t + 5] IS NOT NULL, texts[t + 3], texts[t + 4]
                WHERE NOT EXISTS (
                    SELECT FROM laneway.entries AS x
                    WHERE x.session_id = this_session AND x.id = this_id
                );
                IF NOT FOUND THEN
                    RAISE unique_violation USING MESSAGE = format('%s is an entry', this_id);
                END IF;
                t := t + 5;
            WHEN 4 THEN
                DELETE FROM laneway.scalar_values AS v
                WHERE v.session_id = this_session AND v.namespace = texts[t + 1]
                  AND v.key = texts[t + 2];
                t := t + 2;
            WHEN 6 THEN
                DELETE FROM laneway.list_values AS l
                WHERE l.session_id = this_session AND l.namespace = texts[t + 1]
                  AND l.key = texts[t + 2];
                t := t + 2;
            WHEN 7, 11 THEN
                -- 7 is what the release before sends: accepted is then the commit's instant.
                accepted := CASE WHEN codes[step] = 11 THEN texts[t + 5]::bigint ELSE stamp END;
                INSERT INTO laneway.open_operations
                    (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at,
                     traceparent)
                VALUES (texts[t + 1]::uuid, this_tenant, this_session, texts[t + 2], texts[t + 3],
                        accepted, texts[t + 4]::bigint,
                        CASE WHEN codes[step] = 11 THEN texts[t + 6] END);
                INSERT INTO laneway.operations
                    (id, tenant_id, session_id, lane, kind, status, accepted_at)
                VALUES (texts[t + 1]::uuid, this_tenant, this_session, texts[t + 2], texts[t + 3],
                        'open', accepted);
                t := t + CASE WHEN codes[step] = 11 THEN 6 ELSE 4 END;
            WHEN 8 THEN
                UPDATE laneway.open_operations AS o
                SET due_at = texts[t + 2]::bigint, dispatched_at = NULL
                WHERE o.operation_id = texts[t + 1]::uuid AND o.session_id = this_session;
                t := t + 2;
            WHEN 9 THEN
                DELETE FROM laneway.open_operations AS o
                WHERE o.operation_id = texts[t + 1]::uuid AND o.session_id = this_session;
                UPDATE laneway.operations AS r
                SET status = 'done', outcome = texts[t + 2], result = texts[t + 3],
                    error = texts[t + 4], finished_at = stamp
                WHERE r.id = texts[t + 1]::uuid AND r.session_id = this_session;
                t := t + 4;
            WHEN 10 THEN
                UPDATE laneway.sessions AS s SET name = texts[t + 1] WHERE s.id = this_session;
                t := t + 1;
            WHEN 12 THEN
                UPDATE laneway.idempotency_keys AS k SET status = 0, response = texts[t + 2]
                WHERE k.tenant_id = this_tenant AND k.key = texts[t + 1] AND k.status IS NULL;
                t := t + 2;
            END CASE;
        END LOOP;
        IF tip_moved THEN
            UPDATE laneway.branch_meta AS m SET tip_entry_id = tip, tip_seq = tip_at
            WHERE m.session_id = this_session AND m.branch_id = branch;
        END IF;
        IF t <> last_text THEN
            RAISE EXCEPTION 'the texts of a commit do not fit its steps';
        END IF;
    END LOOP;
    RETURN answer;
END
$$;
