"""A hub on this machine, for what is sent to the real one: repositories, commits, large files, tags, cards.

It speaks the part of the hub's HTTP interface that ``huggingface_hub`` uses, keeps every revision in memory, and checks
what it is sent: tokens, hashes and sizes of large files, and cards by the rules that the library documents.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_right"
SIGNATURE = "let-me-write"  # of the addresses of large files: as good as a token for them
OWNERS = ("me", "my-organisation")
LARGE_SUFFIXES = (".safetensors", ".onnx", ".png")  # as in the .gitattributes of a new repository
LICENCES = ("apache-2.0", "mit", "cc-by-sa-4.0", "cc-by-4.0", "unknown", "other")  # some of the hub's list
FIELDS: dict[str, tuple[type, ...]] = {  # of a card's metadata, by ModelCardData's documentation
    "license": (str,),
    "base_model": (str, list),
    "datasets": (str, list),
    "language": (str, list),
    "library_name": (str,),
    "pipeline_tag": (str,),
    "tags": (list,),
}
NAME = re.compile(r"[A-Za-z0-9_.-]{1,96}(/[A-Za-z0-9_.-]{1,96})?")


def find_faults(content: str) -> list[str]:
    """What the hub would refuse of a card."""
    block = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
    if not block:
        return ["there is no block of metadata"]
    data = yaml.safe_load(block.group(1))
    faults = [
        f'"{name}" is not of the right type' for name, kinds in FIELDS.items() if not _is_a(data.get(name), kinds)
    ]
    if data.get("license", "unknown") not in LICENCES:
        faults.append('"license" must be one of a list')
    named = [name for key in ("base_model", "datasets") for name in _as_list(data.get(key))]
    faults += [f"{name!r} is no repository" for name in named if not NAME.fullmatch(str(name))]
    faults += [f"{c!r} is no language" for c in _as_list(data.get("language")) if not re.fullmatch("[a-z]{2,3}", c)]
    return faults


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    return value is None or isinstance(value, kinds)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


@dataclass
class Repository:
    """commits: each one's files, by its number; ``main`` is the last. ``tags``: name -> number"""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b"*.safetensors"}])
    tags: dict[str, int] = field(default_factory=dict)

    def number_of(self, revision: str) -> int | None:
        if revision == "main":
            return len(self.commits) - 1
        if revision in self.tags:
            return self.tags[revision]
        return next((n for n in range(len(self.commits)) if name_commit(n) == revision), None)


def name_commit(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


@dataclass
class FakeHub:
    """The hub's state, and what it was asked.

    large:    the contents that were uploaded for git's large file storage, by their SHA-256
    requests: "METHOD /path" of all
    fail:     given a request's "METHOD /path", what to do instead of answering: a status, or "drop" the connection
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    fail: Callable[[str], int | str | None] = lambda request: None

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        repository = self.repositories[name]
        number = repository.number_of(revision)
        assert number is not None
        return {k: v for k, v in repository.commits[number].items() if k != ".gitattributes"}

    def uploads(self) -> list[str]:
        return [request for request in self.requests if request.startswith("PUT ")]


@contextmanager
def run_hub() -> Iterator[FakeHub]:
    """A hub that listens on this machine until the block ends."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        self.route, self.query = unquote(parts.path), parse_qs(parts.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self._has_length() else b""
        request = f"{self.command} {self.route}"
        self.hub.requests.append(request)
        trouble = self.hub.fail(request)
        if trouble == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(trouble, int):
            is_store = self.command == "PUT"  # of large files, which says nothing
            return self.answer(b"" if is_store else {"error": "Internal Error"}, trouble)
        for pattern, method in ROUTES:
            if match := re.fullmatch(pattern, request):
                return getattr(self, method)(*match.groups())
        self.answer({"error": f"no such route: {request}"}, 404)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    def _has_length(self) -> bool:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return True
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        self.headers.replace_header("Transfer-Encoding", "identity")
        self.chunked = b"".join(chunks)
        return False

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def permits(self, name: str = "") -> bool:
        """Whether the token is right, and there is such a repository; otherwise that is answered."""
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            text = "Invalid credentials in Authorization header"
            self.answer({"error": text}, 401, X_Error_Message=text)
        elif name and name not in self.hub.repositories:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        else:
            return True
        return False

    def validate(self) -> None:
        faults = find_faults(json.loads(self.body)["content"])
        if "text/plain" in self.headers.get("Accept", ""):
            return self.answer("\n".join(faults).encode(), 400 if faults else 200)
        self.answer({"errors": [{"message": fault} for fault in faults], "warnings": []}, 400 if faults else 200)

    def create(self) -> None:
        if not self.permits():
            return
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] not in OWNERS:
            return self.answer({"error": "You don't have the rights to create a model under this namespace"}, 403)
        self.hub.repositories[name] = Repository(asked.get("visibility") == "private")
        self.answer({"url": f"{self.hub.address}/{name}", "name": name})

    def info(self, name: str, revision: str | None = None) -> None:
        if self.permits(name):
            repository = self.hub.repositories[name]
            number = repository.number_of(revision or "main")
            if number is None:
                return self.answer({"error": "no revision"}, 404, X_Error_Code="RevisionNotFound")
            siblings = [{"rfilename": file} for file in repository.commits[number]]
            sha = name_commit(number)
            self.answer({"id": name, "private": repository.private, "sha": sha, "siblings": siblings, "tags": []})

    def tree(self, name: str, revision: str) -> None:
        if self.permits(name):
            files = self.hub.repositories[name].commits[self.hub.repositories[name].number_of(revision) or 0]
            self.answer([{"type": "file", "path": k, "size": len(v), "oid": git_hash(v)} for k, v in files.items()])

    def preupload(self, name: str, revision: str) -> None:
        if not self.permits(name):
            return
        there = self.hub.repositories[name].commits[-1]
        out = []
        for file in json.loads(self.body)["files"]:
            large = file["path"].endswith(LARGE_SUFFIXES)
            known = {"oid": hash_as(there[file["path"]], large)} if file["path"] in there else {}
            mode = "lfs" if large else "regular"
            out.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, **known})
        self.answer({"files": out})

    def batch(self, name: str) -> None:
        if not self.permits(name):
            return
        out = []
        for asked in json.loads(self.body)["objects"]:
            known = asked["oid"] in self.hub.large
            place = f"{self.hub.address}/large/{asked['oid']}"
            actions = {"upload": {"href": f"{place}?signature={SIGNATURE}"}, "verify": {"href": f"{place}/verify"}}
            out.append(asked | ({} if known else {"actions": actions}))
        self.answer({"transfer": "basic", "objects": out})

    def put_large(self, digest: str) -> None:
        content = self.body or getattr(self, "chunked", b"")
        if hashlib.sha256(content).hexdigest() != digest:
            return self.answer({"error": "the content has another hash"}, 400)
        self.hub.large[digest] = content
        self.answer({})

    def verify(self, digest: str) -> None:
        whole = len(self.hub.large.get(digest, b"")) == json.loads(self.body)["size"]
        self.answer({}, 200 if whole else 404)

    def commit(self, name: str, revision: str) -> None:
        if not self.permits(name):
            return
        repository = self.hub.repositories[name]
        files = dict(repository.commits[-1])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        repository.commits.append(files)
        oid = name_commit(len(repository.commits) - 1)
        self.answer({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.address}/{name}/commit/{oid}"})

    def refs(self, name: str) -> None:
        if self.permits(name):
            tags = self.hub.repositories[name].tags.items()
            listed = [{"name": t, "ref": f"refs/tags/{t}", "targetCommit": name_commit(n)} for t, n in tags]
            self.answer({"branches": [], "converts": [], "tags": listed})

    def tag(self, name: str, revision: str) -> None:
        if self.permits(name):
            repository, asked = self.hub.repositories[name], json.loads(self.body)["tag"]
            if asked in repository.tags:
                return self.answer({"error": "the tag exists"}, 409)
            repository.tags[asked] = repository.number_of(revision) or 0
            self.answer({})

    def untag(self, name: str, tag: str) -> None:
        if self.permits(name):
            del self.hub.repositories[name].tags[tag]
            self.answer({})

    def resolve(self, name: str, revision: str, path: str) -> None:
        if not self.permits(name):
            return
        number = self.hub.repositories[name].number_of(revision)
        files = {} if number is None else self.hub.repositories[name].commits[number]
        if path not in files:
            return self.answer({"error": "no such file"}, 404, X_Error_Code="EntryNotFound")
        known = {"ETag": f'"{git_hash(files[path])}"', "X_Repo_Commit": name_commit(number or 0)}
        self.answer(files[path], 200, **known)


ID = r"([\w.-]+/[\w.-]+)"
ROUTES = (
    ("POST /api/validate-yaml", "validate"),
    ("POST /api/repos/create", "create"),
    (f"GET /api/models/{ID}", "info"),
    (f"GET /api/models/{ID}/revision/(.+)", "info"),
    (f"GET /api/models/{ID}/tree/(.+)", "tree"),
    (f"GET /api/models/{ID}/refs", "refs"),
    (f"POST /api/models/{ID}/preupload/(.+)", "preupload"),
    (f"POST /{ID}.git/info/lfs/objects/batch", "batch"),
    (r"PUT /large/(\w+)", "put_large"),
    (r"POST /large/(\w+)/verify", "verify"),
    (f"POST /api/models/{ID}/commit/(.+)", "commit"),
    (f"POST /api/models/{ID}/tag/(.+)", "tag"),
    (f"DELETE /api/models/{ID}/tag/(.+)", "untag"),
    (f"(?:GET|HEAD) /{ID}/resolve/([^/]+)/(.+)", "resolve"),
)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def hash_as(content: bytes, large: bool) -> str:
    return hashlib.sha256(content).hexdigest() if large else git_hash(content)
