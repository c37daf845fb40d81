-- The place in a trace where an operation was accepted, in the form that W3C gives it, for whichever
-- host drives the operation; null when nobody traced. It names the trace and no content.
ALTER TABLE laneway.open_operations ADD COLUMN traceparent text;

-- Everything an attachment reads, of one session: every lane's leaf, configuration, state and last
-- result, every open operation's metadata and state, and, under a namespace that no session has, the
-- trace of each operation that was accepted within one.
CREATE OR REPLACE FUNCTION laneway.control_values(for_session uuid)
RETURNS TABLE (namespaces text[], keys text[], seqs bigint[], contents text[])
LANGUAGE sql STABLE
AS $$
    SELECT array_agg(f.namespace), array_agg(f.key), array_agg(f.seq), array_agg(f.value)
    FROM (
        SELECT v.namespace, v.key, v.seq, v.value
        FROM laneway.scalar_values AS v
        WHERE v.session_id = for_session
          AND v.namespace IN ('pi.lane.leaf', 'pi.lane.config', 'pi.lane.state',
                              'pi.lane.lastResult', 'pi.op.meta', 'pi.op.state')
        UNION ALL
        SELECT '', o.operation_id::text, 0, o.traceparent
        FROM laneway.open_operations AS o
        WHERE o.session_id = for_session AND o.traceparent IS NOT NULL
    ) AS f
$$;
