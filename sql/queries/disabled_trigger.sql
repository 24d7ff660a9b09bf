-- A trigger that the fleet relies on and that is not there, or disabled.
-- Parameters: none. Zero rows: all of them are at work.
SELECT wanted AS trigger
FROM unnest(ARRAY['pastes_guard', 'pastes_return']) AS wanted
WHERE NOT EXISTS (SELECT FROM pg_trigger
                  WHERE tgrelid = 'pastes'::regclass AND tgname = wanted
                    AND tgenabled IN ('O', 'A'))
LIMIT 1
