#!/usr/bin/env python3
"""Proves, from the outside, that nothing was lost and nothing was left behind.

It shares no code with the product: SQL through psql, S3 through ops/s3.py.
Reads DATABASE_URL, S3_BUCKET and the usual AWS_… variables. Only meaningful
while nobody writes.

    ops/demo-proofs.py --snapshot FILE   remember which pastes are alive now
    ops/demo-proofs.py [--against FILE]  check everything, and that those are still there
"""

import argparse
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote, urlsplit

sys.dont_write_bytecode = True  # leave nothing beside this file
from s3 import Refused, Store  # noqa: E402

READERS = 16

HOLDS_A_REFERENCE = "content_hash IS NOT NULL AND deletion_status <> 'DELETED'"
# What the audit leaves in content to keep the keys of orphans that it deleted.
IS_A_BODY = "content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')"
LIVE = "expires_at IS NULL OR expires_at > now()"


def rows(query):
    """The answer of a query, all values as text."""
    url = urlsplit(os.environ["DATABASE_URL"])
    # In the environment, where other users of the machine cannot read it.
    login = {
        "PGHOST": url.hostname,
        "PGPORT": str(url.port or 5432),
        "PGUSER": unquote(url.username or ""),
        "PGPASSWORD": unquote(url.password or ""),
        "PGDATABASE": url.path.lstrip("/"),
    }
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", f"COPY ({query}) TO STDOUT WITH CSV"]
    env = {**os.environ, **{name: value for name, value in login.items() if value}}
    answer = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    return csv.reader(io.StringIO(answer.stdout.decode(), newline=""))


def number(query):
    return int(next(rows(query))[0])


def live_pastes():
    return {
        code: content
        for code, content in rows(f"SELECT short_code, encode(content_hash, 'hex') FROM pastes WHERE {LIVE}")
    }


class Proof:
    """Collects what was shown and what is wrong."""

    def __init__(self):
        self.shown, self.wrong = [], []

    def claim(self, text, counterexamples):
        """Holds when there is no counterexample."""
        found = sorted(counterexamples)
        self.shown.append((not found, text))
        if found:
            self.wrong.append(f"{len(found):,} against '{text}', e.g. {', '.join(map(str, found[:3]))}")

    def print(self):
        print("proved:" if not self.wrong else "NOT proved:")
        for holds, text in self.shown:
            print(f"  {'ok   ' if holds else 'WRONG'}  {text}")
        for line in self.wrong:
            print(line, file=sys.stderr)


def check_tables(proof):
    total = number("SELECT count(*) FROM pastes")
    expired = rows(f"SELECT short_code FROM pastes WHERE NOT coalesce({LIVE}, true) AND deletion_status <> 'DELETED'")
    proof.claim(f"no expired paste is left among {total:,}", (code for (code,) in expired))
    claimed = rows("SELECT short_code FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS' OR claim_id IS NOT NULL")
    proof.claim("no paste is claimed", (code for (code,) in claimed))
    claims = rows("SELECT id FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL")
    proof.claim("no claim is open", (f"claim {claim}" for (claim,) in claims))
    contents = number(f"SELECT count(*) FROM content WHERE {IS_A_BODY}")
    miscounted = rows(f"""
        SELECT encode(coalesce(c.content_hash, p.content_hash), 'hex'), c.ref_count, p.holders
        FROM (SELECT * FROM content WHERE {IS_A_BODY}) c FULL JOIN (
            SELECT content_hash, count(*) AS holders FROM pastes WHERE {HOLDS_A_REFERENCE} GROUP BY 1
        ) p USING (content_hash)
        WHERE c.ref_count IS DISTINCT FROM p.holders""")
    proof.claim(
        f"the ref_count of all {contents:,} content rows equals the recount",
        (f"{content[:12]}… says {says or 'nothing'}, is {holders or 0}" for content, says, holders in miscounted),
    )


def bucket_keys():
    return set(Store().keys(os.environ["S3_BUCKET"], os.environ.get("CLEANUP_S3_PREFIX", "")))


def check_bucket(proof, kept, contents):
    known = {key for key, _ in contents.values()}
    proof.claim(f"none of the {len(kept):,} objects in the bucket is an orphan", kept - known)
    proof.claim("no body is missing from the bucket", known - kept)


def check_live(proof, live, contents):
    unowned = {code for code, content in live.items() if content not in contents}
    proof.claim(f"each of the {len(live):,} live pastes has a body", unowned)
    needed = {content: contents[content] for content in live.values() if content in contents}
    faults, read_bytes = read_bodies(needed)
    text = f"all {len(needed):,} bodies they need were read: SHA-256 and size are right ({read_bytes:,} bytes)"
    proof.claim(text, faults)


def read_bodies(needed):
    """Reads every body; returns what is wrong with them, and the bytes read."""
    mine = threading.local()  # a connection for each thread

    def connect():
        mine.store = Store()

    def read(item):
        content, (key, size) = item
        try:
            body = mine.store.request("GET", os.environ["S3_BUCKET"], key)
        except (OSError, Refused) as error:
            return f"{key}: {error}", 0
        if hashlib.sha256(body).hexdigest() != content:
            return f"{key}: other bytes than its hash says", len(body)
        if size and len(body) != int(size):
            return f"{key}: {len(body)} bytes instead of {size}", len(body)
        return None, len(body)

    with ThreadPoolExecutor(READERS, initializer=connect) as readers:
        answers = list(readers.map(read, needed.items()))
    return [fault for fault, _ in answers if fault], sum(size for _, size in answers)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--snapshot", metavar="FILE")
    arguments.add_argument("--against", metavar="FILE")
    wanted = arguments.parse_args()
    live = live_pastes()
    if wanted.snapshot:
        with open(wanted.snapshot, "w", encoding="utf-8") as file:
            json.dump(live, file)
        return 0

    keys = bucket_keys()
    proof = Proof()
    contents = {
        content: (key, size)
        for content, key, size in rows(
            f"SELECT encode(content_hash, 'hex'), s3_key, size_bytes FROM content WHERE {IS_A_BODY}"
        )
    }
    check_tables(proof)
    if wanted.against:
        with open(wanted.against, encoding="utf-8") as file:
            before = json.load(file)
        lost = {code for code, content in before.items() if live.get(code) != content}
        proof.claim(f"all {len(before):,} pastes that were alive before are alive and unchanged", lost)
    check_live(proof, live, contents)
    check_bucket(proof, keys, contents)
    proof.print()
    return 1 if proof.wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyError as missing:
        sys.exit(f"{missing} is not set")
    except subprocess.CalledProcessError:
        sys.exit("psql failed, see above")
    except (OSError, Refused) as error:
        sys.exit(f"{error}")
