#!/usr/bin/env python3
"""A small S3 client that uses only the standard library, so that checks do not
depend on the code they check. Run as a program, it checks that the store at
AWS_ENDPOINT_URL works: it creates a bucket and an object, and deletes both.
"""

import hashlib
import hmac
import http.client
import os
import re
import sys
import time
import xml.etree.ElementTree as xml
from urllib.parse import quote, unquote_plus, urlencode, urlsplit


class Refused(Exception):
    """The store answered with an error."""


def reason(content):
    """Returns the error code of an answer, or the beginning of the answer."""
    code = re.search(rb"<Code>(.*?)</Code>", content)
    return (code.group(1) if code else content[:200]).decode(errors="replace")


class Store:
    """One connection. Not thread-safe."""

    def __init__(self):
        url = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self.host = url.netloc
        self.connection = kind(url.hostname, url.port, timeout=30)
        self.region = os.environ.get("AWS_REGION", "us-east-1")
        self.key_id = os.environ["AWS_ACCESS_KEY_ID"]
        self.secret = os.environ["AWS_SECRET_ACCESS_KEY"]

    def request(self, method, bucket, key="", query=None, body=b""):
        """Sends a signed request. Returns the content of the answer."""
        path = "/" + quote(f"{bucket}/{key}" if key else bucket, safe="/-_.~")
        query = urlencode(sorted((query or {}).items()), quote_via=quote, safe="-_.~")
        headers = self.sign(method, path, query, hashlib.sha256(body).hexdigest())
        try:
            self.connection.request(method, f"{path}?{query}" if query else path, body or None, headers)
            answer = self.connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()  # the next request reconnects
            raise
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {reason(content)}")
        return content

    def sign(self, method, path, query, body_hash):
        """Returns the headers of AWS Signature Version 4."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        signed = {"host": self.host, "x-amz-content-sha256": body_hash, "x-amz-date": now}
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        canonical = "\n".join([method, path, query, lines, names, body_hash])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
        credential = f"Credential={self.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**signed, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}

    def keys(self, bucket, prefix=""):
        """Lists all keys under a prefix."""
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        while True:
            page = xml.fromstring(self.request("GET", bucket, query=query))
            for element in page.iter():
                element.tag = element.tag.rpartition("}")[2]
            yield from (unquote_plus(item.findtext("Key")) for item in page.iter("Contents"))
            if page.findtext("IsTruncated") != "true":
                return
            query["continuation-token"] = page.findtext("NextContinuationToken")


def main():
    store, bucket = Store(), f"ready-{os.getpid()}-{time.time_ns()}"
    store.request("PUT", bucket)
    try:
        store.request("PUT", bucket, "a/b", body=b"ready")
        assert store.request("GET", bucket, "a/b") == b"ready"
        assert list(store.keys(bucket)) == ["a/b"]
        store.request("DELETE", bucket, "a/b")
    finally:
        store.request("DELETE", bucket)


if __name__ == "__main__":
    try:
        main()
    except (OSError, http.client.HTTPException, Refused) as error:
        sys.exit(f"S3 is not ready: {error}")
