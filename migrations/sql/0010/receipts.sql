-- The receipt of an operation, open or done, in whatever session of the tenant it is.
CREATE FUNCTION laneway.receipt(for_tenant uuid, for_operation uuid)
RETURNS TABLE (
    session_id uuid, lane text, kind text, status text, outcome text, error text, result text,
    accepted_at bigint, finished_at bigint
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('laneway.tenant', for_tenant::text, true);
    RETURN QUERY
    SELECT r.session_id, r.lane, r.kind, r.status, r.outcome, r.error, r.result, r.accepted_at,
           r.finished_at
    FROM laneway.operations AS r WHERE r.id = for_operation AND r.tenant_id = for_tenant;
END
$$;
