"""A small server that speaks as much of wandb's protocol as sending runs to it takes.

GraphQL at `/graphql`, a run's history and summary at `/files/ENTITY/PROJECT/RUN/file_stream`, and
uploads to the addresses that GraphQL's answers name. What it is sent it keeps in memory, as wandb's
own server shows it: a row of the history by its line number, an artifact once by its content.
"""

import base64
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

ENTITY = "team"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"
DROP, HANG = "drop", "hang"
HEALTHY = ""

Json = dict[str, Any]
Fault = Callable[[str], str]
"""A request's name -> HEALTHY, DROP, HANG or the HTTP status that it is answered with.

The names are those of the GraphQL operations, `file_stream`, and `upload PATH`.
"""


@dataclass
class ServerRun:
    """One run as the server holds it."""

    id: str
    project: str
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()
    config: Json = field(default_factory=dict)
    summary: Json = field(default_factory=dict)
    lines: dict[int, Json] = field(default_factory=dict)
    """Line number -> row of the history."""
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    """None until the run is complete."""

    @property
    def history(self) -> list[Json]:
        return [self.lines[number] for number in sorted(self.lines)]


@dataclass
class ServerArtifact:
    """One version of an artifact."""

    id: str
    name: str
    type: str
    run_id: str
    digest: str
    aliases: set[str] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    manifest: Json = field(default_factory=dict)
    committed: bool = False


class WandbServer:
    """The server, in threads of its own while it is entered."""

    def __init__(self) -> None:
        self.runs: dict[str, ServerRun] = {}
        self.artifacts: list[ServerArtifact] = []
        self.requests: list[str] = []
        """The names of all requests, in their order."""
        self.logins: set[str] = set()
        """User and password of all requests that had them."""
        self.problems: list[str] = []
        """Operations that this server does not know, and its own errors."""
        self.fault: Fault = lambda name: HEALTHY
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._uploads: dict[str, Callable[[bytes], None]] = {}
        self._http = _Http(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> "WandbServer":
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()

    def note(self, name: str, login: str) -> str:
        """Take a request down; return how it is to fail."""
        with self._lock:
            self.requests.append(name)
            if login:
                self.logins.add(login)
            return self.fault(name)

    def answer(self, name: str, path: str, body: bytes) -> Json:
        with self._lock:
            if path == "/graphql":
                return {"data": self._graphql(name, json.loads(body).get("variables") or {})}
            if name == "file_stream":
                return self._stream(self.runs[unquote(path).split("/")[4]], json.loads(body))
            if name.startswith("upload "):
                self._uploads[path](body)
            return {}

    def _graphql(self, name: str, variables: Json) -> Json:
        operations: dict[str, Callable[[Json], Json]] = {
            "Viewer": lambda _: {"viewer": {"id": "user", "entity": ENTITY, "flags": "{}"}},
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._create_run_files,
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._create_manifest,
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit_artifact,
        }
        if name not in operations:
            self.problems.append(name)
            return {}
        return operations[name](variables)

    def _upsert_run(self, variables: Json) -> Json:
        inserted = variables["name"] not in self.runs
        run = self.runs.setdefault(
            variables["name"], ServerRun(variables["name"], variables["project"])
        )
        # Later requests of the same run name only what has changed.
        run.name = variables["displayName"] or run.name
        run.group = variables["groupName"] or run.group
        run.job_type = variables["jobType"] or run.job_type
        run.tags = tuple(variables["tags"] or run.tags)
        if variables["config"]:
            config = json.loads(variables["config"])
            run.config = {key: entry["value"] for key, entry in config.items()}
        entity = {"id": "entity", "name": ENTITY}
        bucket = {
            "id": f"id-{run.id}",
            "name": run.id,
            "displayName": run.name,
            "config": variables["config"],
            "project": {"id": "project", "name": run.project, "entity": entity},
            "historyLineCount": len(run.lines),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _stream(self, run: ServerRun, sent: Json) -> Json:
        for name, part in sent.get("files", {}).items():
            if name == HISTORY:
                for number, line in enumerate(part["content"], start=part["offset"]):
                    run.lines[number] = json.loads(line)
            elif name == SUMMARY:
                run.summary = json.loads(part["content"][-1])
        if sent.get("complete"):
            run.exit_code = sent["exitcode"]
        return {"exitcode": None, "limits": {}}

    def _create_run_files(self, variables: Json) -> Json:
        run = self.runs[variables["run"]]
        files = [
            {"name": name, "uploadUrl": self._upload(f"run/{run.id}/{name}", run.files, name)}
            for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": run.id, "uploadHeaders": [], "files": files}}

    def _create_artifact(self, variables: Json) -> Json:
        sent = variables["input"]
        key = (sent["artifactCollectionName"], sent["digest"])
        found = [artifact for artifact in self.artifacts if (artifact.name, artifact.digest) == key]
        if not found:
            artifact = ServerArtifact(
                id=str(len(self.artifacts)),
                name=sent["artifactCollectionName"],
                type=sent["artifactTypeName"],
                run_id=sent["runName"],
                digest=sent["digest"],
            )
            self.artifacts.append(artifact)
            found = [artifact]
        found[0].aliases |= {alias["alias"] for alias in sent["aliases"]}
        content = {
            "id": found[0].id,
            "state": "COMMITTED" if found[0].committed else "PENDING",
            "artifactSequence": {"latestArtifact": None},
        }
        return {"createArtifact": {"artifact": content}}

    def _create_manifest(self, variables: Json) -> Json:
        artifact = self.artifacts[int(variables["artifactID"])]
        path = f"artifact/{artifact.id}/{variables['name']}"
        address = self._add_upload(path, lambda body: artifact.manifest.update(json.loads(body)))
        entry = {"id": artifact.id, "uploadUrl": address, "uploadHeaders": []}
        manifest = {"id": artifact.id, "file": entry}
        return {"createArtifactManifest": {"artifactManifest": manifest}}

    def _create_artifact_files(self, variables: Json) -> Json:
        nodes: list[Json] = []
        for sent in variables["input"]["artifactFiles"]:
            artifact = self.artifacts[int(sent["artifactID"])]
            path = f"artifact/{artifact.id}/{sent['name']}"
            nodes.append(
                {
                    "storagePath": path,
                    "uploadUrl": self._upload(path, artifact.files, sent["name"]),
                    "uploadHeaders": [],
                    "uploadMultipartUrls": None,
                    "artifact": {"id": artifact.id},
                }
            )
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _commit_artifact(self, variables: Json) -> Json:
        artifact = self.artifacts[int(variables["artifactID"])]
        artifact.committed = True
        content = {"id": artifact.id, "digest": artifact.digest}
        return {"commitArtifact": {"artifact": content}}

    def _upload(self, path: str, files: dict[str, bytes], name: str) -> str:
        return self._add_upload(path, lambda body: files.update({name: body}))

    def _add_upload(self, path: str, take: Callable[[bytes], None]) -> str:
        address = f"/upload/{quote(path)}"
        self._uploads[address] = take
        return self.url + address


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: WandbServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong here; a client that is killed goes away in mid-request."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            self.owner.problems.append(repr(error))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_POST(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = _name_of(self.path, body)
        _, _, login = self.headers.get("Authorization", "").partition(" ")
        fault = owner.note(name, base64.b64decode(login).decode())
        if fault in (DROP, HANG):
            if fault == HANG:
                owner.stopping.wait()
            self.close_connection = True
        elif fault:
            self._reply(int(fault), {"errors": [{"message": "as asked"}]})
        else:
            self._reply(200, owner.answer(name, self.path, body))

    do_PUT = do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the tests' output clean."""

    def _reply(self, status: int, content: Json) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _name_of(path: str, body: bytes) -> str:
    if path == "/graphql":
        found = re.match(r"\s*(?:query|mutation)\s+(\w+)", json.loads(body)["query"])
        return found[1] if found else "unnamed"
    if path.endswith("/file_stream"):
        return "file_stream"
    return unquote(path).removeprefix("/").replace("upload/", "upload ", 1)
