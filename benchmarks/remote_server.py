"""An S3 server for reading that answers late: what GET, HEAD and ListObjectsV2 need, over the files of a folder.

    python -m benchmarks.remote_server FOLDER [--latency-ms 50]

moto, which the tests use, takes 10 CPU ms per request of a large object, and would be what is measured. Prints where it is;
then, for each line of its input, how many requests and bytes it has answered since the last one.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from aiohttp import web

BUCKET = "bench"


class Server:
    """The bucket ``bench``, with the files of a folder."""

    def __init__(self, folder: Path, latency_s: float) -> None:
        self.folder, self.latency_s = folder, latency_s
        self.requests = self.nbytes = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.latency_s)
        self.requests += 1
        key = request.match_info.get("key", "")
        if not key:
            return web.Response(text=self.listed(request.query.get("prefix", "")), content_type="application/xml")
        file = self.folder / key
        if not file.is_file():
            return web.Response(
                status=404, text="<Error><Code>NoSuchKey</Code></Error>", content_type="application/xml"
            )
        size = file.stat().st_size
        if request.method == "GET":
            span = request.http_range
            start, stop, _ = slice(span.start, span.stop).indices(size)
            self.nbytes += stop - start
        return web.FileResponse(file)

    def listed(self, prefix: str) -> str:
        lines = [f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"]
        for file in sorted(self.folder.rglob("*")):
            key = file.relative_to(self.folder).as_posix()
            if file.is_file() and key.startswith(prefix):
                facts = file.stat()
                etag = f"&quot;{facts.st_mtime_ns:x}-{facts.st_size:x}&quot;"  # that of `web.FileResponse`
                when = "2026-11-23T00:00:00.000Z"
                about = f"<LastModified>{when}</LastModified><ETag>{etag}</ETag><Size>{facts.st_size}</Size>"
                lines.append(
                    f"<Contents><Key>{escape(key)}</Key>{about}<StorageClass>STANDARD</StorageClass></Contents>"
                )
        inner = "".join(lines)
        return f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</ListBucketResult>'


async def serve(server: Server) -> None:
    app = web.Application()
    app.router.add_route("*", f"/{BUCKET}/{{key:.*}}", server.answer)
    app.router.add_route("*", f"/{BUCKET}", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"requests": server.requests, "bytes": server.nbytes}), flush=True)
        server.requests = server.nbytes = 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency-ms", type=float, default=50)
    asked = parser.parse_args()
    asyncio.run(serve(Server(asked.folder, asked.latency_ms / 1_000)))


if __name__ == "__main__":
    main()
