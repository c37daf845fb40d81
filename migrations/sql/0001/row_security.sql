-- Every tenant-owned table shows and takes only rows of the tenant that the transaction names in
-- laneway.tenant; without one it shows nothing. FORCE holds the owner to the policies too, and the
-- owner's own policy lets migrations, retention and the named cross-tenant functions below see all.
-- The comparison is plain: wrapped in a sub-select it cost fifteen times as much.
DO $$
DECLARE
    owned text;
BEGIN
    FOREACH owned IN ARRAY ARRAY[
        'api_keys', 'agents', 'credentials', 'webhooks', 'sessions', 'entries', 'usage_ledger',
        'branch_entries', 'branch_meta', 'scalar_values', 'list_values', 'open_operations',
        'operations', 'idempotency_keys'
    ] LOOP
        EXECUTE format('ALTER TABLE laneway.%I ENABLE ROW LEVEL SECURITY', owned);
        EXECUTE format('ALTER TABLE laneway.%I FORCE ROW LEVEL SECURITY', owned);
        EXECUTE format(
            'CREATE POLICY tenant_only ON laneway.%I '
            'USING (tenant_id = nullif(current_setting(''laneway.tenant'', true), '''')::uuid)',
            owned
        );
        EXECUTE format(
            'CREATE POLICY owner_sees_all ON laneway.%I TO CURRENT_USER USING (true)', owned
        );
    END LOOP;
END
$$;
