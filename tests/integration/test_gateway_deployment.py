"""The gateway Deployment: the real smg with its arguments, against an executor's API.

Without mutual TLS it looks for the pods in the API of Kubernetes, here one that serves a stored
pod. With it, nginx stands between, as the component configures it, and asks a name server for them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from specsched_protocol.tcp import TcpAddress

from tests.certificates import Authority
from tests.deploy.manifests import FOLDER, containers, find, render
from tests.executor.gateway.fakes import MODEL, WORDS, AnsweringEngine, serving
from tests.integration.processes import wait_until
from tests.integration.test_smg import free_port
from tests.nginx import nginx
from tests.repository import ROOT

API_OBJECTS = ROOT / "tests" / "deploy" / "api_objects"
ANSWER = ("hello", "world", "<end>")
LABELS = {"app.kubernetes.io/name=specsched", "app.kubernetes.io/component=executor"}
FIELDS = {"metadata.namespace": "specsched"}
POD_NAME = "specsched-0.specsched.specsched.svc.cluster.local"


def answering() -> AnsweringEngine:
    return AnsweringEngine(lambda request: [WORDS.index(word) for word in ANSWER])


def gateway(overlay: str) -> Any:
    """The smg container of an overlay."""
    deployment = find(render(FOLDER / "overlays" / overlay), "Deployment", "specsched-gateway")
    (*_, smg) = containers(deployment["spec"]["template"])
    return smg


class Smg:
    """smg with a container's arguments on loopback. ports: of the container -> of this machine."""

    def __init__(
        self, spec: dict[str, Any], arguments: Sequence[str], log: Path, environ: dict[str, str]
    ) -> None:
        self.spec = spec
        self.ports = {port: free_port() for port in ("8080", "8081", "29000")}
        words = []
        for word in arguments:
            flag, equals, value = word.partition("=")
            value = {**self.ports, "0.0.0.0": "127.0.0.1"}.get(value, value)
            words.append(f"{flag}{equals}{value}")
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "smg", *words],
                stdout=out,
                stderr=out,
                env={**os.environ, **environ},
            )

    def ask(self, port: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=30)
        try:
            headers = {"Content-Type": "application/json"}
            payload = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, payload, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text[:1] in b"{[" and text else text
        finally:
            connection.close()

    def wait_for_model(self) -> None:
        def is_offered() -> bool:
            assert self.process.poll() is None
            try:
                status, models = self.ask("8080", "/v1/models")
            except OSError:
                return False
            return status == 200 and MODEL.name in [each["id"] for each in models["data"]]

        wait_until(is_offered, timeout_s=90, interval_s=0.1)

    def wait_for_probe(self, path: str) -> None:
        wait_until(lambda: self.ask("8081", path)[0] == 200, timeout_s=60)

    def wait_for_answer(self) -> Any:
        """smg offers a model before it has its tokenizer, and says 503 meanwhile."""
        wait_until(lambda: self.chat()[0] != 503, timeout_s=60, interval_s=0.1)
        status, answer = self.chat()
        assert status == 200, answer
        return answer

    def chat(self) -> tuple[int, Any]:
        message = {"role": "user", "content": "hello"}
        body = {"model": MODEL.name, "messages": [message], "temperature": 0}
        return self.ask("8080", "/v1/chat/completions", body)


@asynccontextmanager
async def running(smg: Smg) -> AsyncIterator[Smg]:
    try:
        await asyncio.to_thread(smg.wait_for_model)
        yield smg
    finally:
        smg.process.kill()
        smg.process.wait()


async def assert_answers(smg: Smg) -> None:
    answer = await asyncio.to_thread(smg.wait_for_answer)
    assert answer["choices"][0]["message"]["content"].split() == list(ANSWER[:2])
    probes = [smg.spec[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
    for path in probes:
        await asyncio.to_thread(smg.wait_for_probe, path)


# ===================== Pods are looked for =====================


@contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """Serves one stored pod, at a loopback address; yields a kubeconfig."""
    pod = json.loads((API_OBJECTS / "pod-0.json").read_text())
    pod["status"]["podIP"] = "127.0.0.1"
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query)
            labels = set(query.get("labelSelector", [""])[0].split(","))
            is_ours = asked.path == "/api/v1/namespaces/specsched/pods" and labels == LABELS
            self.send_response(200 if is_ours else 403)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if is_ours and "watch" not in query:
                found = {"kind": "PodList", "apiVersion": "v1", "items": [pod]}
                found["metadata"] = {"resourceVersion": "41230"}
                self.wfile.write(json.dumps(found).encode())
            elif is_ours:
                ended.wait(120)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        named = [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": named,
            "users": [{"name": "it", "user": {}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        try:
            yield path
        finally:
            ended.set()
            server.shutdown()


async def test_smg_finds_the_pods_by_itself(tmp_path: Path) -> None:
    container = gateway("one-gpu")
    arguments = container.arguments(FIELDS)
    async with serving(answering(), listen=TcpAddress("127.0.0.1", 0)) as executor:
        port = f"--service-discovery-port={executor.listen_port}"
        words = [word.replace("--service-discovery-port=50052", port) for word in arguments]
        assert port in words
        with api_server(tmp_path) as kubeconfig:
            smg = Smg(container.spec, words, tmp_path / "smg.log", {"KUBECONFIG": str(kubeconfig)})
            async with running(smg):
                await assert_answers(smg)


# ===================== Mutual TLS =====================


@contextmanager
def name_server(known: dict[str, str]) -> Iterator[int]:
    """Answers questions for IPv4 addresses; yields its UDP port on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            while True:
                question, peer = server.recvfrom(512)
                if not question:
                    return
                server.sendto(reply(question, known), peer)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.sendto(b"", server.getsockname())
            thread.join()


def reply(question: bytes, known: dict[str, str]) -> bytes:
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    asked = question[12 : at + 5]
    address = known.get(".".join(labels))
    flags, count = (0x8180, 1) if address else (0x8183, 0)  # NXDOMAIN
    head = question[:2] + struct.pack(">5H", flags, 1, count, 0, 0)
    if address is None:
        return head + asked
    record = struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)
    return head + asked + record


def configuration() -> str:
    """What the component has nginx do."""
    objects = render(FOLDER / "overlays" / "mtls")
    (text,) = [each["data"]["nginx.conf"] for each in objects if each["kind"] == "ConfigMap"]
    return text


@asynccontextmanager
async def behind_nginx(folder: Path, *identities: str) -> AsyncIterator[Smg]:
    """smg and nginx in front of an executor whose certificate is for these names; not awaited."""
    authority = Authority(folder / "tls")
    server, client = authority.issue("server", *identities), authority.issue("gateway", "gateway")
    client.certificate.rename(folder / "tls/tls.crt")
    client.key.rename(folder / "tls/tls.key")
    client.ca.rename(folder / "tls/ca.crt")
    files = type(server)(folder / "tls/ca.crt", server.certificate, server.key)
    ports = {"51000": str(free_port()), "51001": str(free_port())}
    (folder / "tmp").mkdir()
    async with serving(answering(), listen=TcpAddress("127.0.0.1", 0), tls=files) as executor:
        with name_server({POD_NAME: "127.0.0.1"}) as dns:
            replaced = {
                **ports,
                "/tmp/": f"{folder}/tmp/",
                "/etc/specsched/tls": str(folder / "tls"),
                "kube-dns.kube-system.svc.cluster.local": f"127.0.0.1:{dns}",
                ":50052": f":{executor.listen_port}",
            }
            container = gateway("mtls")
            arguments = container.arguments(FIELDS)
            for was, now in ports.items():
                arguments = [word.replace(was, now) for word in arguments]
            with nginx(folder, configuration(), replaced, int(ports["51000"])):
                smg = Smg(container.spec, arguments, folder / "smg.log", {})
                try:
                    yield smg
                finally:
                    smg.process.kill()
                    smg.process.wait()


async def test_smg_reaches_the_pods_by_mutual_tls(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path, "*.specsched.specsched.svc.cluster.local") as smg:
        await asyncio.to_thread(smg.wait_for_model)
        await assert_answers(smg)


async def test_an_executor_with_anothers_certificate_is_not_asked(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path, "specsched-0.elsewhere.svc.cluster.local"):
        log = tmp_path / "nginx.log"
        told = f'upstream SSL certificate does not match "{POD_NAME}"'
        await asyncio.to_thread(wait_until, lambda: told in log.read_text(), timeout_s=60)
