-- Doctor: which login is this, and what other roles does it have besides that of a worker?
-- Parameters: none. Always one row.
SELECT quote_ident(current_user) AS login,
       rolsuper AS is_superuser,
       coalesce(pg_has_role(current_user,
                            (SELECT relowner FROM pg_class WHERE oid = to_regclass('pastes')),
                            'USAGE'), false) AS is_owner,
       coalesce(pg_has_role(current_user, to_regrole('cleanup_worker'), 'USAGE'), false) AS is_worker
FROM pg_roles
WHERE rolname = current_user
